"""What the fields of a library's index mean, and those of ``--json`` of tune and explain."""

from collections.abc import Mapping

LIBRARY_TITLE = "Library"

LIBRARY_ABOUT = (
    "What `taccl tune` writes beside the programs, as `index.json`, and `taccl explain` reads;"
    " see [tuning.md](tuning.md). No field holds a time of day, a path or how long anything took."
)

LIBRARY_EXAMPLE = """{
  "taccl": "library/1",
  "topology": {"name": "dgx2", "ranks": 32, "servers": 2, "alpha_rule": "occupy", ...},
  "runtime": "executor",
  "collectives": [{
    "collective": "allgather",
    "ranges": [{"min_bytes": 1024, "max_bytes": 96255, "file": "algorithms/allgather-01-guided.xml",
                "why": "the fastest of 64 programs at 5 of the 7 sizes in it, ...", ...}],
    "sizes": [{"size_bytes": 1024, "time_us": 5.2, "bound_us": 3.8, "over_classical": 0.84, ...}],
    ...
  }],
  ...
}
"""

RANGE = {
    "min_bytes": "smallest size, as nccl-tests counts it",
    "max_bytes": "largest size",
    "file": "the program, in the directory of the index; null: there is none",
    "served_by": "`file`, `nccl` (left to NCCL's own algorithm) or `nothing` (no program runs)",
    "why": "in words",
    "engine": "who found the schedule",
    "made_for_bytes": "the size that it was searched for",
    "chunks": "chunks for each rank (of alltoall: for each pair)",
    "batch": "whether several chunks may travel in one message",
    "sketch": "under which sketch; null: none",
    "instances": "copies of the program, each for a share of every chunk",
    "protocol": "`Simple`, `LL` or `LL128`",
    "seed": "of the search",
    "effort": "seconds of the search, or work counted in the place of seconds",
    "modes": "`in place`, `out of place`",
    "divisor_bytes": "a call whose bytes are no multiple of it runs the runtime's own algorithm",
    "safe_up_to_bytes": "the largest size of the run at which it can't deadlock",
    "verified_at_bytes": "both ends of its range: judged and replayed there",
    "steps": "of the whole program",
    "threadblocks": "of the whole program",
    "sha256": "of the file",
    "plans": "plans of MSCCL++, one for each mode; empty where files are XML",
}

LIBRARY_MEANINGS: Mapping[str, Mapping[str, str]] = {
    "LibraryFile": {
        "taccl": "which format this is",
        "topology": "the machine",
        "sketches": "what candidates were searched under, beside the whole machine",
        "runtime": "whose files these are",
        "protocols": "what every program was replayed in, the preferred one first",
        "sizes": "where every program was replayed, in bytes",
        "slack_percent": "how much slower than the fastest a program may be, to spare a file",
        "budget": "how much was searched",
        "seed": "of the first searches",
        "interrupted": "whether Ctrl-C ended the search",
        "model": "what the times are",
        "nccl_model": "what is known of NCCL's own algorithms, and its inputs; null: nothing is"
        " left to NCCL",
        "versions": "of the packages that results depend on",
        "code_sha256": "of taccl's own source files",
        "collectives": "one entry each",
    },
    "LibraryTopology": {
        "name": "its name",
        "ranks": "how many",
        "servers": "how many",
        "alpha_rule": "how long a message holds its link",
        "profile": "what programs are charged: `alpha-beta` or `measured`",
        "sha256": "of the topology as a graph",
    },
    "LibrarySketch": {"name": "its name", "sha256": "of the topology and the sketch's text"},
    "LibraryBudget": {
        "candidates": "searches, besides the classical algorithms",
        "time_limit_s": "seconds for the whole run",
    },
    "LibraryCollective": {
        "collective": "its name",
        "call": "the call of NCCL",
        "ranges": "who serves which sizes: ascending, disjoint, without gaps",
        "sizes": "what was found at every size of the run",
        "candidates": "how many there were",
    },
    "LibraryRange": RANGE,
    "LibraryPlan": {
        "name": "what the plan calls itself",
        "file": "in the directory of the index",
        "in_place": "whether it is for calls in place",
        "min_bytes": "smallest size, as nccl-tests counts it",
        "max_bytes": "largest size",
        "unit_bytes": "MSCCL++ takes multiples of it only",
        "protocol": "`Simple`: signals, `LL`: packets",
        "scratch_chunks": "chunks of scratch that a rank needs at most",
        "times_us": "by size in bytes, by replay",
        "sha256": "of the file",
    },
    "LibrarySize": {
        "size_bytes": "the size",
        "file": "who serves it; null: no file",
        "time_us": "of that file, by replay",
        "bound_us": "no program is faster",
        "bound_kind": "the idea behind the bound",
        "gap": "time / bound - 1",
        "best_us": "time of the fastest program of all",
        "over_best": "time / that",
        "classical": "the fastest classical algorithm",
        "classical_us": "its time",
        "over_classical": "time / that",
        "bound_over_classical": "bound / that: what no algorithm can go below",
        "nccl": "what NCCL would run, by its own model",
        "nccl_us": "what NCCL's model says it takes, the launch of the kernel included",
    },
    "LibraryCandidates": {
        "searched": "searches",
        "classical": "classical algorithms that were looked at",
        "programs": "programs in the race, one for each protocol",
        "without_program": "searches that found none: the engine is not for this, or the runtime's"
        " limits were in the way",
        "failed": "searches whose worker was lost twice, or that met a fault",
    },
    "LibraryFailure": {"candidate": "which", "reason": "what happened"},
}

TUNE_FIELDS: Mapping[str, str] = {
    "output": "the directory",
    "journal": "the file that remembers finished candidates",
    "seconds": "of wall clock",
    "candidates_done": "results used, known ones included; 0: the whole library was known",
    "files": "the names of all files in the directory",
    "index": "`index.json`, see [formats.md](formats.md#library)",
}

EXPLAIN_FIELDS: Mapping[str, str] = {
    "collective": "the collective",
    "size_bytes": "the size asked about",
    "ranks": "of the library",
    "runtime": "of the library",
    "in_library": "whether the size is in a range of the library; if not, only `served_by`, `file`"
    " and `why` follow",
    **RANGE,
    "runs": "whether a call of exactly this size runs the file",
    "nearest": "what the index says of the nearest size of the run",
    "candidates": "how many candidates there were",
}
