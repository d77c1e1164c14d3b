"""The checks of what nvcc made notice what they are for. The build itself is checked by `make cuda`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import check_cuda_build
import kernel_reports
import kernel_table

SYMBOL = "_ZN9expertree4cuda12product_dp4aILNS_5DTypeE12ELi1ELb1EEEvNS0_11ProductArgsE"
REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{symbol}' for 'sm_86'
ptxas info    : Function properties for {symbol}
    {stack} bytes stack frame, {spill} bytes spill stores, {spill} bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 20480 bytes smem, 400 bytes cmem[0]
"""
SASS = """\tFunction : {symbol}
        /*0ba0*/                   LDG.E.128.CONSTANT R68, [R14.64] ;   /* 0x0 */
        /*0bb0*/              @!P0 IDP.4A.S8.S8 R60, R44, R4, R2 ;      /* 0x0 */
        /*0bc0*/                   EXIT ;
"""


def write_report(folder: Path, spill: int) -> None:
    text = REPORT.format(symbol=SYMBOL, stack=spill, spill=spill)
    (folder / "cuda_kernels_product_q4_k.cu.o.ptxas").write_text(text)
    (folder / "cuda_kernels_product_q4_k.cu.o").write_text("")


def test_reports_are_read(tmp_path: Path) -> None:
    write_report(tmp_path, 8)
    (report,) = kernel_reports.ptxas_reports(tmp_path)
    assert (report.object, report.target, report.registers) == ("product_q4_k", 86, 40)
    assert (report.shared_bytes, report.spilled_bytes) == (20480, 8)


@pytest.mark.parametrize(("spill", "n_faults"), [(0, 0), (64, 0), (68, 1)])
def test_spills_above_the_gate(tmp_path: Path, spill: int, n_faults: int) -> None:
    write_report(tmp_path, spill)
    assert len(list(check_cuda_build.spill_faults(tmp_path))) == n_faults


def test_no_report_is_a_fault(tmp_path: Path) -> None:
    assert list(check_cuda_build.spill_faults(tmp_path))


@pytest.mark.parametrize("missing", ["", "IDP.4A.S8.S8", "LDG.E.128.CONSTANT"])
def test_missing_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    write_report(tmp_path, 0)
    sass = SASS.format(symbol=SYMBOL)
    monkeypatch.setattr(kernel_reports, "dump", lambda *_: sass.replace(missing, "NOP") if missing else sass)
    monkeypatch.setattr(check_cuda_build, "cuobjdump", lambda: Path("cuobjdump"))
    assert len(list(check_cuda_build.sass_faults(tmp_path, {86}))) == (1 if missing else 0)


def test_occupancy() -> None:
    report = kernel_reports.KernelReport("", "", "", 86, registers=40, shared_bytes=20480)
    # 48 warps: blocks of 4 warps, bounded by 100 KiB over 21 KiB of shared memory.
    assert kernel_table.occupancy(report, 128) == pytest.approx(4 * 4 / 48)
    report = kernel_reports.KernelReport("", "", "", 86, registers=40)
    assert kernel_table.occupancy(report, 128) == 1.0  # 12 blocks of 4 warps
    report = kernel_reports.KernelReport("", "", "", 90, registers=128)
    assert kernel_table.occupancy(report, 128) == pytest.approx(16 / 64)  # 65536 / (128 * 128) blocks
