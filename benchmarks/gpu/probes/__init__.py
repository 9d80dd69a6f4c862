"""Each module has ``run(findings, gpu, variant)``; `benchmarks.gpu.plan` names them all."""
