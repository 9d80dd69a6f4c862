"""Tests of gpustore; a package so that suites shared between tests can be imported."""
