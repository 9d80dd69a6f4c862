"""What the findings of ``health`` and ``limits`` come to: rows that are met, or not."""

from benchmarks.gpu.plan import CODECS


def _row(what, found, met):
    return {"what": what, "found": found, "met": met}


def _right(probes, probe, names, what):
    """Whether all named facts of a probe are right; those of libraries that lack are told."""
    record = probes.get(probe, {})
    facts = record.get("facts", {})
    asked = {name: facts[name] for name in names(facts)}
    lacking = [name for name, row in asked.items() if "missing" in row]
    wrong = [
        name
        for name, row in asked.items()
        if name not in lacking and not (row.get("right") and row.get("written", True))
    ]
    if record.get("failures") or wrong:
        return _row(what, ", ".join(wrong) or record["failures"][-1]["how"], False)
    if not asked:
        return _row(what, record.get("reason", "not asked"), None)
    text = f"{len(asked) - len(lacking)} right"
    return _row(what, f"{text}; without {', '.join(lacking)}" if lacking else text, not lacking)


def _engines(probes):
    wanted = {*CODECS}
    return _right(
        probes,
        "engines",
        lambda facts: [n for n in facts if n in wanted or n.startswith("own kernel")],
        "streams of each codec are decoded",
    )


def _self_test(probes):
    facts = probes.get("engines", {}).get("facts", {})
    what = "self-test of the decoder"
    if "shortcoming" not in facts:
        return _row(what, "not asked", None)
    return _row(what, facts["shortcoming"] or facts["engine"] or "", not facts["shortcoming"])


def _arrays(probes):
    return _right(
        probes,
        "arrays",
        lambda facts: [name for name in facts if name.startswith("zarr")],
        "small arrays are read and written",
    )


def _counted(probes, counter, what, *, may=False):
    facts = probes.get("arrays", {}).get("facts", {})
    found = {name: row[counter] for name, row in facts.items() if counter in row}
    some = [f"{name}: {count}" for name, count in found.items() if count]
    text = ", ".join(some) or "0" if found else "not asked"
    return _row(what, text, not some if found and not may else None)


def _suite(probes, *, emulated):
    record = next((found for name, found in probes.items() if name.startswith("suite")), {})
    facts = record.get("facts", {})
    counts, failed = facts.get("counts", {}), facts.get("failed", [])
    what = "pytest -m gpu"
    if not counts:
        return _row(what, record.get("reason", "not asked"), None)
    if emulated:
        count = counts.get("collected", 0)
        is_well = facts.get("exit_status") == 0 and count > 0
        return _row(f"{what} --collect-only", f"{count} tests", is_well)
    text = f"{counts['PASSED']} passed, {len(failed)} failed, {counts['SKIPPED']} skipped"
    is_whole = facts.get("exit_status") == 0 and "cut_short" not in facts
    if "cut_short" in facts:
        text += f"; {facts['cut_short']}"
    return _row(what, text, is_whole and not failed)


def _sanitizer(probes):
    record = next((found for name, found in probes.items() if name.startswith("sanitizer")), {})
    facts = record.get("facts", {})
    if not facts:
        return _row("compute-sanitizer", record.get("reason", "not asked"), None)
    text = ", ".join(
        f"{tool}: {row.get('errors', 'cut short')} errors" for tool, row in facts.items()
    )
    known = [row["errors"] for row in facts.values() if "errors" in row]
    return _row("compute-sanitizer", text, not any(n != 0 for n in known) if known else None)


def _health(report):
    probes = report["probes"]
    return [
        _self_test(probes),
        _engines(probes),
        _arrays(probes),
        _counted(probes, "retries", "retries"),
        _counted(probes, "host_fallbacks", "chunks that the host decodes"),
        _counted(probes, "few_stream_reads", "reads of few streams that the host decodes"),
        _counted(
            probes, "missing_decoder_reads", "reads that the host decodes for lack of a library"
        ),
        _counted(probes, "host_encodings", "chunks that the host encodes", may=True),
        _suite(probes, emulated=report["emulated"]),
        _sanitizer(probes),
    ]


def _limits(report):
    probes = report["probes"]
    wrong = [
        f"{name}: {fact}"
        for name, record in probes.items()
        for fact, row in record.get("facts", {}).items()
        if isinstance(row, dict)
        and ("error" in row or False in (row.get("equal"), row.get("right")))
    ]
    rows = [_row("results", ", ".join(wrong) or "right", not wrong)]
    for name, row in probes.get("kernels", {}).get("facts", {}).items():
        if "share" in row:
            share = row["share"]
            rows.append(_row(f"kernel {name}", f"{share:.0%} of the device's copy rate", None))
    best = probes.get("sweep", {}).get("facts", {}).get("best")
    rows.append(_row("best setting", str(best or "not measured"), None))
    return rows


def rows(report):
    """Rows of what was asked, what was found, and whether that is as it should be.

    Returns
    -------
    list of dict
        ``what``, ``found`` as text, ``met``: True, False, or None if there is nothing to be met.
    """
    return (_health if report["report"] == "health" else _limits)(report)


def lines(found):
    """The rows as text."""
    yield "== in short"
    for row in found:
        met = {True: "ok", False: "NOT OK", None: ""}[row["met"]]
        yield "  " + "  ".join(text for text in (row["what"], row["found"], met) if text)
