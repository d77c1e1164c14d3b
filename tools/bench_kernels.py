"""Speed of the matmul kernels on one core, as fractions of what the core can do.

With one column (decoding) the limit is the memory: weights are walked through in a buffer larger than every cache, and
GB/s of weights stands beside a plain read of memory. With many columns (prefill, tree verification) the limit is int8
arithmetic: GOPS stand beside int8 products in registers. Probes run beside every line, since shared machines drift.

With --sequence, what reads a sequence's past is timed instead: attention of one KV head with 8 query heads over the
formats of the KV cache, and the delta rule of one head's state, for 1 row and for 8, from memory.

With --against TYPE, each format takes turns with that one for a number of rounds, at one column and at 64: the table
has the median share of the limit and the median of its ratio to TYPE's share in the same round.
"""

import argparse
import statistics

from expertree._core import _testing

FLOATS = ["F32", "F16", "BF16"]
QUANTISED = [str(row["name"]) for row in _testing.dtype_table() if row["name"] not in FLOATS]


def limit_share(isa, type_name, args, columns):
    """Share of the limit: of a plain read with one column, of int8 products with more."""
    buffer_bytes = (args.buffer_mib << 20) if columns == 1 else 0
    huge = not args.small_pages
    limit = _testing.time_memory_read(args.seconds / 2, huge) if columns == 1 else _testing.time_int8(args.seconds / 4)
    t = _testing.time_matmul(
        isa, type_name, args.rows, args.k, columns, args.seconds, huge, min_buffer_bytes=buffer_bytes
    )
    return (t["gb_per_s"] if columns == 1 else t["gops"]) / limit


def compare(args):
    """The table of --against."""
    print(f"{args.isa}, rows {args.rows}, k {args.k}; {args.rounds} rounds against {args.against}")
    print(f"{'type':8}{'of read':>9}{'ratio':>7}{'of int8':>9}{'ratio':>7}")
    for type_name in args.types:
        shares = {1: [], 64: []}
        ratios = {1: [], 64: []}
        for _ in range(args.rounds):
            for columns in (1, 64):
                share = limit_share(args.isa, type_name, args, columns)
                shares[columns].append(share)
                ratios[columns].append(share / limit_share(args.isa, args.against, args, columns))
        cells = [f"{statistics.median(shares[c]):9.0%}{statistics.median(ratios[c]):7.2f}" for c in (1, 64)]
        print(f"{type_name:8}{''.join(cells)}", flush=True)


def sequence(args):
    """The table of --sequence."""
    buffer_bytes = args.buffer_mib << 20
    read = _testing.time_memory_read(args.seconds / 2, True)
    print(f"{args.isa}; a plain read takes {read:.1f} GB/s; best of {args.seconds} s")
    print(f"{'kernel':34}{'rows':>5}{'us':>10}{'GB/s':>8}{'of read':>9}")
    for rows in (1, 8):
        timings = {
            f"attend {kind}, 4096 cells of 128": _testing.time_attend(
                args.isa, kind, 8, 128, 4096, rows, args.seconds, buffer_bytes
            )
            for kind in ("f32", "f16", "q8_0")
        }
        timings["delta_scan 128 x 128"] = _testing.time_delta_scan(args.isa, 128, 128, rows, args.seconds, buffer_bytes)
        for name, t in timings.items():
            share = t["gb_per_s"] / read
            print(f"{name:34}{rows:5}{t['seconds'] * 1e6:10.1f}{t['gb_per_s']:8.2f}{share:9.0%}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--isa", default=_testing.best_isa(), choices=_testing.isa_names())
    parser.add_argument("--types", nargs="+", default=QUANTISED + FLOATS, metavar="TYPE")
    parser.add_argument("--rows", type=int, default=768, help="weight rows of one matrix (default %(default)s)")
    parser.add_argument("--k", type=int, default=2048, help="elements per row (default %(default)s)")
    parser.add_argument("--columns", type=int, nargs="+", default=[1, 2, 4, 8, 64])
    parser.add_argument("--seconds", type=float, default=0.3, help="time per measurement (default %(default)s)")
    parser.add_argument("--buffer-mib", type=int, default=256, help="weights walked through with one column")
    parser.add_argument("--small-pages", action="store_true", help="4 KiB pages, as a mapped file has them")
    parser.add_argument("--sequence", action="store_true", help="attention and the recurrent state instead")
    parser.add_argument("--against", metavar="TYPE", help="compare shares of the limits with this format's")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    if args.sequence:
        return sequence(args)
    if args.against is not None:
        return compare(args)

    huge = not args.small_pages
    print(f"{args.isa}, rows {args.rows}, k {args.k}, {'huge' if huge else '4 KiB'} pages; best of {args.seconds} s")
    print(f"{'type':8}{'columns':>8}{'us':>10}{'GB/s':>8}{'of read':>9}{'GOPS':>9}{'of int8':>10}")
    for type_name in args.types:
        for columns in args.columns:
            buffer_bytes = (args.buffer_mib << 20) if columns == 1 else 0
            read = _testing.time_memory_read(args.seconds / 2, huge) if columns == 1 else 0.0
            peak = _testing.time_int8(args.seconds / 4)
            t = _testing.time_matmul(
                args.isa, type_name, args.rows, args.k, columns, args.seconds, huge, min_buffer_bytes=buffer_bytes
            )
            of_read = f"{t['gb_per_s'] / read:8.0%}" if read else ""
            of_peak = f"{t['gops'] / peak:9.0%}" if peak and type_name in QUANTISED else ""
            print(
                f"{type_name:8}{columns:8}{t['seconds'] * 1e6:10.1f}{t['gb_per_s']:8.2f}{of_read:>9}"
                f"{t['gops']:9.1f}{of_peak:>10}",
                flush=True,
            )


if __name__ == "__main__":
    main()
