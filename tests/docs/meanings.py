"""What every field of the file formats and of ``--json`` means, in words for people.

The tests hold these tables against the models and against what the commands print: a field
without a meaning fails them, and so does a meaning without a field.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tests.docs.library_meanings import (
    EXPLAIN_FIELDS,
    LIBRARY_ABOUT,
    LIBRARY_EXAMPLE,
    LIBRARY_MEANINGS,
    LIBRARY_TITLE,
    TUNE_FIELDS,
)


class Format(NamedTuple):
    """How a format is introduced: title, text, and an example in a language."""

    title: str
    about: str
    language: str
    example: str


FORMATS: Mapping[str, Format] = {
    "topology": Format(
        "Topology: a graph",
        "Ranks and switches are vertices, and every edge is a resource: one message at a time."
        " All other forms expand to this one (`taccl topology expand`).",
        "yaml",
        """taccl: topology/1
name: two-pairs
ranks: 4
edges:
  - {from: 0, to: 1, bandwidth: 25GB/s, alpha: 0.7us}
  - {from: 2, to: 3, bandwidth: 25GB/s, alpha: 0.7us}
  - {from: 0, to: 2, bandwidth: 12.5GB/s, alpha: 1.7us}
  - {from: 1, to: 3, bandwidth: 12.5GB/s, alpha: 1.7us}
servers: [[0, 1], [2, 3]]
rotations: [[1, 0, 3, 2], [2, 3, 0, 1]]
""",
    ),
    "topology-servers": Format(
        "Topology: servers and a fabric",
        "One server, repeated `count` times, and what joins the NICs. `--nodes N` overrides the"
        " count, `--fabric` the kind of fabric. With one server there are neither NICs nor fabric."
        " Ranks are numbered server by server; names become `s0/ib0.tx`, `s1/nvswitch`.",
        "yaml",
        """taccl: topology/1
name: two-gpu-servers
node:
  gpus: 2
  wires: [{from: 0, to: 1, bandwidth: 25GB/s, alpha: 0.7us}]
  nics: [{name: ib0, gpus: all, bandwidth: 12.5GB/s}]
count: 2
fabric: {kind: switch, alpha: 1.7us}
""",
    ),
    "topology-shape": Format(
        "Topology: a shape",
        "A parametric network. The short form on the command line says the same:"
        " `torus2d:4x4@25GB/s,1us`.",
        "yaml",
        """taccl: topology/1
name: small-torus
shape: {kind: torus, dims: [4, 4], bandwidth: 25GB/s, alpha: 1us}
""",
    ),
    "topology-original": Format(
        "Topology: TACCL's own costs",
        "What `taccl topology import --costs original` writes: the numbers of a TACCL file, times"
        " of one chunk. What they become depends on the sketch, so commands that read such a file"
        " take `--sketch`; see [taccl.md](taccl.md#two-cost-modes)."
        " `--nodes` is the sketch's `nnodes`"
        " when left out. Switches are called `s0/switch0`.",
        "yaml",
        """taccl: topology/1
name: NDv2_1KB
chunk_size: 1KB
costs: original
original: {base: NDv2, gpus: 8, time_unit: 10ns, alpha: 30, betas: [2.24, 4.5],
           invbws: [32.25, 34.5], remote_alpha: 260, remote_beta: 10.25}
""",
    ),
    "sketch": Format(
        "Sketch",
        "What you know about a good algorithm. Every field but `taccl` and `name` is optional;"
        " [sketches.md](sketches.md) explains each with an example.",
        "yaml",
        """taccl: sketch/1
name: one-door
chunks_per_rank: 1
internode:
  relays: {0: [1]}
symmetry: auto
on_shortest_paths: true
""",
    ),
    "sketch-taccl": Format(
        "Sketch in TACCL's JSON",
        "The sketches of microsoft/taccl (`taccl/examples/sketch`) load unchanged. Keys that"
        " TACCL does not read are ignored with one warning.",
        "json",
        """{
  "nnodes": 2,
  "intranode_sketch": {"strategy": "none"},
  "internode_sketch": {"strategy": "relay", "internode_conn": {"0": [1]}},
  "symmetry_offsets": [[8, 16]],
  "hyperparameters": {"input_chunkup": 1}
}
""",
    ),
    "collective": Format(
        "Collective",
        "A collective of your own, given to `synthesize` and `bound` in place of a name. A chunk"
        " that is copied may be served from any rank that has it; with `reduces` the values of all"
        " ranks that have it are summed. Ranks may keep a chunk at different offsets. `--size`"
        " counts the largest buffer of any rank, holes included, so a chunk has size / (chunks in"
        " that buffer) bytes; busbw is algbw. `--chunks K` cuts every chunk: chunk c becomes c K,"
        " c K + 1, ..., and its offsets are scaled alike. Of the runtimes, only msccl has custom"
        " collectives (`--runtime msccl`, out of place); for the others there is the schedule"
        " (`--schedule`).",
        "yaml",
        """\
taccl: collective/1
name: neighbours
ranks: 4
chunks:
  - {id: 0, input: {0: 0}, output: {1: 0}}
  - {id: 1, input: {1: 0}, output: {2: 0}}
  - {id: 2, input: {2: 0}, output: {3: 0}}
  - {id: 3, input: {3: 0}, output: {0: 0}}
""",
    ),
    "demand": Format(
        "Demand",
        "An AlltoAllv: how many bytes every rank sends to every other, given to `synthesize` and"
        " `bound` in place of a collective's name. Row s, column d: from rank s to rank d; 0: no"
        " chunk at all; the diagonal stays where it is. Each pair's bytes are whole chunks of the"
        " greatest common divisor of all numbers, so round odd numbers up to multiples of a few"
        " KB. A rank's input holds what it sends in order of destinations, its output what it"
        " receives in order of sources, without gaps. The size is that of the largest buffer, and"
        " `--size` is left out. No runtime has an AlltoAllv: the result is a schedule"
        " (`--schedule`).",
        "yaml",
        """\
taccl: demand/1
bytes:
  - [0, 4MB, 1MB, 1MB]
  - [1MB, 0, 1MB, 1MB]
  - [2MB, 1MB, 0, 0]
  - [1MB, 1MB, 1MB, 0]
""",
    ),
    "scenario": Format(
        "Scenario",
        "What disturbs a machine while programs run on it (`taccl evaluate --scenario`);"
        " [scenarios.md](scenarios.md#scenarios) says what each entry does. Numbers are exact:"
        " `0.3` and `1/3` are what they say.",
        "yaml",
        """taccl: scenario/1
name: bad-day
background: [{edge: "0->*", share: 0.3}]
stragglers: [{ranks: 3, late: 50us, slow: 1.5}]
jitter: {message: {distribution: exponential, mean: 1us}}
changes: [{link: 1->2, at: 100us, factor: 0.25}]
""",
    ),
    "groups": Format(
        "Groups",
        "Process groups that call collectives at once (`synthesize T groups.yaml -o DIR`, `bound`);"
        " the index of such a directory is one, too. [groups.md](groups.md) says how they are"
        " solved.",
        "yaml",
        """taccl: groups/1
name: tp8-dp2
ranks: 16
groups:
  - {name: tp, collective: allreduce, size: 64MB, chunks: 1, each: [0-7, 8-15]}
  - {name: dp, collective: reducescatter, size: 1GB, each: {stride: 8, count: 2}, start: 40us}
relays: members
objective: makespan
""",
    ),
    "workload": Format(
        "Workload",
        "What a training step computes and communicates (`taccl step`); [step.md](step.md) says how"
        " each entry is played.",
        "yaml",
        """taccl: workload/1
name: three-layers
ranks: 8
batch: {samples: 64, by: even}
speed: {3: 0.5}
groups: {tp: {each: [0-3, 4-7]}, dp: {each: [[0, 4], [1, 5], [2, 6], [3, 7]]}}
layers:
  - {name: conv0, bytes: 7.2KB, forward: 0.8ms, backward: 1.6ms}
  - {name: fc0, bytes: 411MB, forward: 0.7ms, backward: 1.4ms}
  - name: mlp
    forward: 0.4ms
    backward: 0.8ms
    comm: [{when: forward, collective: allreduce, group: tp, bytes: 50MB, split: 8}]
sync: [{group: dp, bucket: 25MB, first: 1MB, order: priority, partition: 4MB, wait: layer}]
input: {time: 1ms}
""",
    ),
    "schedule": Format(
        "Schedule",
        "What `synthesize --schedule` writes and `convert` reads. It holds the whole topology, so"
        " it can be verified without any other file, and it is read back exactly.",
        "json",
        """{
  "taccl": "schedule/1",
  "collective": {"name": "allgather", "ranks": 4, "chunks_per_rank": 1},
  "chunk_size": "250000 B",
  "sends": {"chunk": [0], "link": [0], "batch": [0], "reduce": [0], "start_ps": [0], ...},
  ...
}
""",
    ),
    "library": Format(LIBRARY_TITLE, LIBRARY_ABOUT, "json", LIBRARY_EXAMPLE),
    "measurements": Format(
        "Measurements",
        "Measured times of collectives on one machine (`taccl measured`); the shipped ones are"
        " listed in [truth.md](truth.md).",
        "yaml",
        """taccl: measurements/1
name: my-cluster
source: nccl-tests 2.14, in place
machine: 2 x 8 A100
costs: dgx-a100
topology: dgx-a100
runs:
  - collective: allreduce
    what: NCCL 2.21
    place: in
    algorithm: nccl
    channels: 24
    nodes: 2
    times: {1048576: 61.2, 67108864: 1012.5}
""",
    ),
}

_ON_EDGES = {
    "edge": "an edge by its name in `taccl topology expand`; `*` is any text",
    "link": "two ranks, `0->1` or `0-1` for both ways: all edges between them",
}
_HEADER = {
    "taccl": "which format this is",
    "name": "what reports call it",
    "alpha_rule": "how long a message holds its link: alpha is a part of it (`occupy`) or not"
    " (`delay`); see [concepts.md](concepts.md#alpha-rules)",
    "local": "what work inside a rank costs in the replay",
    "chunk_size": "without `--size`, `synthesize` and `bound` take as many bytes as make chunks of"
    " this size",
    "costs": "how an imported TACCL file's numbers were taken, for the record; results repeat it",
    "gpu": "which GPU it has, for NCCL's time model alone: which row of its tables holds",
    "measured": "what programs cost on real hardware (`--profile measured`); see"
    " [truth.md](truth.md)",
}
_MEASURED = {
    "source": "where the numbers are from",
    "inside": "the part of their bandwidth that edges within a server have left for data",
    "across": "the same of edges that only links between servers use",
    "several": "the part of `inside` that is left on an edge which several links of a program use",
    "copy_bandwidth": "of a threadblock that copies, or receives",
    "reduce_bandwidth": "of a threadblock that adds",
    "flag": "from the post of a step to where others see it",
    "slices": "most slices of a message",
    "protocols": "costs of each protocol",
    "mscclpp": "what MSCCL++ plans cost: signals (`Simple`), packets (`LL`), switch channels"
    " (`NVLS`); protocols that are not in it are as in the rest",
}
_PLANS = {name: meaning for name, meaning in _MEASURED.items() if name != "mscclpp"}
_PROTOCOL = {
    "launch": "added once to every replay",
    "alpha": "from the end of a slice to its arrival, within a server; holds nothing",
    "alpha_across": "the same between servers; none: `alpha`",
    "wire": "bytes on the wire for each byte of data",
    "detour": "how many times as long bytes take between servers, through the memory of hosts",
    "threadblock": "the most data of one threadblock; 0: no limit",
    "slice": "least bytes of a slice",
}
_COLLECTIVE = {
    "taccl": "which format this is",
    "name": "what reports call it; not that of a collective that taccl has",
    "ranks": "as in the topology",
    "chunks": "the chunks, in any order",
    "reduces": "the values of a chunk's ranks are summed on the way",
    "late": "ranks, and how long after a chunk is ready they have their own value of it",
}
_CHUNK = {
    "id": "0, 1, 2, ... up to the number of chunks less one",
    "input": "the ranks that have the chunk before, and where in their input, in chunks",
    "output": "the ranks that want it after, and where in their output",
    "ready": "from when on the ranks have it",
    "needed": "until when the others want it; left out: not before the latest of all chunks",
}
_LOCAL = {
    "copy_bandwidth": "of `cpy` and `r` steps",
    "reduce_bandwidth": "of steps that add",
    "launch": "added once to every replay",
}
_ABILITIES = {
    "multicast": "it copies messages from one port to many: `true`, or how",
    "reduce": "it adds messages from many ports: `true`, or how",
    "engine": "what limits the part of it that copies and adds",
    "trees": "most different trees through it in one schedule; none: any",
    "groups": "most different sets of ranks that it serves in one schedule; none: any",
}
_ABILITY_RECORDS = {
    "MulticastRecord": {
        "own": "`through`: what it copies for a rank it gives back to that rank, too, as NVLink"
        " SHARP does; `local`: to the others"
    },
    "ReductionRecord": {
        "own": "`through`: a rank that gets the sum sends its own value through the switch, too, as"
        " with NVLink SHARP; `local`: it adds it at home",
        "turn": "`switch`: a sum may turn round here and go down to many; `rank`: it goes to one"
        " rank or switch",
        "types": "the data types that it adds, by their names in nccl-tests; none: all",
    },
    "EngineRecord": {
        "bandwidth": "the most that it copies or adds at every port; none: what the port has",
        "alpha": "added once to what crosses it and is copied or added on the way",
        "window": "what a port may have under way: no more bytes than these cross in the time of"
        " one way up and down",
        "message": "the largest message",
    },
    "WindowRecord": {"slots": "how many messages", "bytes": "of one message"},
}
_COSTS = {
    "bandwidth": "how fast bytes cross; left out or `none`: it is no resource and only adds alpha",
    "alpha": "latency of a message",
    "overhead": "the part of alpha that holds the link; overrides `alpha_rule`",
}


def _flat() -> dict[tuple[str, str, str], str]:
    nested: Mapping[tuple[str, str], Mapping[str, str]] = {
        ("topology", "GraphFile"): _HEADER
        | {
            "ranks": "how many ranks; they are numbered from 0",
            "switches": "vertices that are no ranks: names, or records",
            "edges": "the resources",
            "servers": "which ranks share a server; none: one server",
            "rotations": "symmetries as rank permutations; verified when they are used",
        },
        ("topology", "EdgeRecord"): _COSTS
        | {
            "from": "a rank or the name of a switch",
            "to": "a rank or the name of a switch",
            "name": "required where two edges have the same ends",
            "both": "also add the reverse edge",
        },
        ("topology", "LocalRecord"): _LOCAL,
        ("topology", "MeasuredRecord"): _MEASURED,
        ("topology", "PlansRecord"): _PLANS,
        ("topology", "ProtocolRecord"): _PROTOCOL,
        ("topology", "SwitchRecord"): _ABILITIES
        | {
            "name": "how edges call it",
            "across": "`servers`: it carries only paths between ranks of different servers",
        },
        ("topology-servers", "ServersFile"): _HEADER
        | {
            "node": "one server; all servers are equal",
            "nodes": "every server, where they differ (instead of `node`)",
            "count": "how many servers; none: 1, or as many as `nodes` lists",
            "fabric": "what joins the NICs; needed for more than one server",
        },
        ("topology-servers", "Crossing"): _COSTS,
        ("topology-servers", "FabricRecord"): {
            "kind": "`switch`: any NIC to any NIC; `rail`: NICs of one index only; `leaf-spine`:"
            " leaves of servers with uplinks; `torus`, `mesh`: a grid of servers; `none`",
            "alpha": "latency of one whole crossing",
            "overhead": "the part of alpha that holds the link",
            "spine": "of a `rail` fabric: joins the rails",
            "leaves": "of a `leaf-spine` fabric: how many leaf switches",
            "uplink": "of a `leaf-spine` fabric: from a leaf to the spine, all spines pooled",
            "oversubscription": "of a `leaf-spine` fabric, instead of the uplink's bandwidth: what"
            " the NICs of a leaf can send over what the leaf can send to the spine",
            "dims": "of a `torus` or `mesh` fabric: servers in each dimension",
            "switches": "what switches of the fabric can do: `fabric`, `railN`, `leafN`, `spine`",
        },
        ("topology-servers", "LocalRecord"): _LOCAL,
        ("topology-servers", "MeasuredRecord"): _MEASURED,
        ("topology-servers", "PlansRecord"): _PLANS,
        ("topology-servers", "ProtocolRecord"): _PROTOCOL,
        ("topology-servers", "NicRecord"): {
            "name": "becomes the vertices NAME.tx and NAME.rx",
            "gpus": "the GPUs that use it; they share its bandwidth",
            "at": "instead of `gpus`: the switch that it is plugged into",
            "bandwidth": "of each direction",
            "pcie": "gives the edges between GPUs and NIC costs of their own",
        },
        ("topology-servers", "NodeRecord"): {
            "gpus": "how many GPUs a server has",
            "wires": "direct links between GPUs",
            "switches": "switches inside the server",
            "nics": "what leaves the server",
            "rotations": "symmetries of one server, as permutations of its GPUs",
        },
        ("topology-servers", "NodeSwitchRecord"): _COSTS
        | _ABILITIES
        | {
            "name": "how sketches call it",
            "members": "the GPUs on it; none: all; `[]`: not one",
            "across": "`servers`: it carries only what goes to other servers, as a PCIe switch does"
            " where GPUs have better links",
            "links": "what joins it to other switches of the server, such as PCIe switch and CPU",
        },
        ("topology-servers", "SwitchLinkRecord"): _COSTS | {"to": "another switch of the server"},
        ("topology-servers", "WireRecord"): _COSTS
        | {
            "from": "a GPU of the server",
            "to": "another GPU of the server",
            "name": "required where two wires have the same ends",
            "both": "also add the reverse wire",
        },
        ("topology-shape", "ShapeFile"): _HEADER | {"shape": "the network"},
        ("topology-shape", "LocalRecord"): _LOCAL,
        ("topology-shape", "MeasuredRecord"): _MEASURED,
        ("topology-shape", "PlansRecord"): _PLANS,
        ("topology-shape", "ProtocolRecord"): _PROTOCOL,
        ("topology-shape", "ShapeRecord"): {
            "kind": "`hub` is one switch, `full` a wire for every pair; switches of a `leaf-spine`,"
            " `fat-tree` and `dragonfly` that lie side by side are one with the bandwidth of all",
            "dims": "ranks in each dimension; one number for all but meshes and tori. `leaf-spine`:"
            " leaves, ranks of a leaf and, if not 1, the oversubscription of its uplink."
            " `fat-tree`: the ports k of a switch, for k^3/4 ranks. `dragonfly`: groups, routers"
            " of a group, ranks of a router",
            "bandwidth": "of every wire and cable (port of a hub)",
            "alpha": "of every wire; one crossing of a switch, half on each of its two edges",
            "switches": "what switches of some names can do; `taccl topology expand` shows names",
        },
        **{
            (form, record): fields
            for form in ("topology", "topology-servers", "topology-shape")
            for record, fields in _ABILITY_RECORDS.items()
        },
        **{
            (form, "SwitchesRecord"): _ABILITIES | {"name": "of a switch; `*` is any text"}
            for form in ("topology-servers", "topology-shape")
        },
        ("topology-original", "OriginalFile"): _HEADER
        | {"original": "TACCL's numbers; needs `chunk_size`"},
        ("topology-original", "LocalRecord"): _LOCAL,
        ("topology-original", "MeasuredRecord"): _MEASURED,
        ("topology-original", "PlansRecord"): _PLANS,
        ("topology-original", "ProtocolRecord"): _PROTOCOL,
        ("topology-original", "OriginalRecord"): {
            "base": "the machine: which GPUs are joined, and by links of which class",
            "gpus": "of a server (NDv2 has 8)",
            "nics": "of a server, shared by all declared connections (NDv2 has 1, DGX2 8)",
            "time_unit": "what the numbers count",
            "alpha": "latency inside a server; counts under switch sketches only",
            "betas": "`node_betas_list`: of each class of links; of `custom`, a matrix [to][from]",
            "invbws": "`node_invbws_list`: alpha + beta, of each class; of `custom`, a matrix",
            "links": "of `custom`: how many links, a matrix [to][from]",
            "remote_alpha": "latency between servers; needed for more than one",
            "remote_beta": "of a whole NIC, before it is divided; needed for more than one",
        },
        ("sketch", "SketchFile"): {
            "taccl": "which format this is",
            "name": "what reports call it",
            "chunks_per_rank": "chunk count; `--chunks` overrides it",
            "links": "which links may be used",
            "switches": "few (`uc-min`) or many (`uc-max`) different connections through a"
            " switch; `*` means all links inside servers",
            "balance": "`minmax`: keep the busiest link light; `maxmin`: use all links alike;"
            " among routings that are equally fast",
            "internode": "how servers are joined",
            "symmetry": "`auto`, [offset, block] pairs, or permutations of all ranks",
            "max_extra_hops": "how many hops longer than the shortest a path may be; none: any",
            "on_shortest_paths": "a chunk visits only ranks on paths with the fewest hops from one"
            " of its sources to one of its targets, as in TACCL",
            "limits": "what the runtime has",
        },
        ("sketch", "InternodeRecord"): {
            "relays": "sender to receivers, or `fully-connected`, or `direct-map`",
            "chunk_to_relay": "which senders a GPU's chunks leave its server by",
            "own_chunks_first": "a sender sends its own chunks before those of others",
        },
        ("sketch", "LimitsRecord"): {
            "connections_per_gpu": "the most peers of a GPU",
            "channels": "kept with the sketch; give `--channels` to the command",
        },
        ("sketch", "LinksRecord"): {
            "deny": "links that may not be used",
            "allow": "links of those that may be used after all",
        },
        ("sketch", "PatternRecord"): {
            "from": "where links start; none: anywhere",
            "to": "where links end; none: anywhere",
            "across": "only links between servers; numbers are those inside a server",
            "within": "only links inside servers; numbers are those inside a server",
        },
        ("sketch-taccl", "TacclSketchFile"): {
            "nnodes": "servers that the sketch is for",
            "intranode_sketch": "links inside servers",
            "internode_sketch": "links between servers; needed for more than one",
            "symmetry_offsets": "[offset, block] pairs",
            "hyperparameters": "see below",
        },
        ("sketch-taccl", "HyperparametersRecord"): {"input_chunkup": "chunks for each rank"},
        ("sketch-taccl", "InternodeRecord"): {
            "strategy": "only relays exist",
            "internode_conn": "sender to receivers, or `fully-connected`, or `direct-map`",
            "gpus_to_sender_rev_map": "sender to the GPUs whose chunks leave by it",
            "enforce_ordering": "a sender sends its own chunks before those of others",
        },
        ("sketch-taccl", "IntranodeRecord"): {
            "strategy": "`switch`: `switches` say something; `minmax`, `maxmin`: `balance` of the"
            " native form",
            "switches": "the GPUs of every switch",
            "switch_hyperedge_strategy": "`uc-min` or `uc-max` for each of the switches",
        },
        ("collective", "CollectiveFile"): _COLLECTIVE,
        ("collective", "ChunkRecord"): _CHUNK,
        ("demand", "DemandFile"): {
            "taccl": "which format this is",
            "bytes": "for every rank, what it sends to every rank: bytes, or sizes such as 1MB",
        },
        ("schedule", "ScheduleFile"): {
            "taccl": "which format this is",
            "engine": "who found it",
            "seed": "of the search",
            "collective": "what it does",
            "topology": "the network in the graph form",
            "topology_digest": "of the topology in the file; a change by hand is noticed",
            "alpha_rule": "`occupy`, `delay` or `explicit`, as in the topology",
            "chunk_size": "exact bytes of a chunk",
            "makespan_ps": "when the last chunk has arrived, and its tail is over, in picoseconds",
            "generators": "symmetries: the sends below are repeated under all their products",
            "representatives": "how many sends are listed",
            "packs": "whether any chunks of a link may travel together: ranks copy them side by"
            " side before they are sent, and to their places when they have arrived",
            "fans": "of schedule/2: what switches copy and add; a `link` beyond the last stands for"
            " one of these, in order",
            "sends": "the sends, as columns",
        },
        ("schedule", "FanRecord"): {
            "turn": "the rank where the value turns, or the switch: ranks + its place in the list",
            "in": "the arcs towards the turn, each the ids of its edges: their values are added",
            "out": "the arcs from the turn",
        },
        ("schedule", "CollectiveRecord"): {
            "name": "of the collective",
            "ranks": "as in the topology",
            "chunks_per_rank": "chunks for each rank (of alltoall: for each pair; of broadcast and"
            " reduce: in all; of a definition: parts of each of its chunks)",
            "root": "of broadcast, reduce, gather and scatter; left out: 0",
            "definition": "of a collective that has no name of its own, as in its file",
            "ready_ps": "by chunk, from when on (in picoseconds) ranks have it; left out: 0",
            "tail_ps": "by chunk, for how long who wants it still works on it; left out: 0",
            "late_ps": "by rank, how much later it has its own values; left out: 0",
        },
        ("measurements", "MeasurementsFile"): {
            "taccl": "which format this is",
            "name": "what reports call it",
            "source": "who measured, and how",
            "machine": "on what, in words",
            "costs": "the shipped topology whose measured costs hold, or a name of your own",
            "topology": "a name, a path, or a topology in full",
            "runs": "what ran",
        },
        ("measurements", "RunRecord"): {
            "collective": "what was done",
            "what": "what the source calls it",
            "place": "`in` or `out` of place",
            "algorithm": "what ran: NCCL's `ring`, `tree`, `pairs` of sends and receives, the best"
            " of ring and tree (`nccl`), MSCCL `files`, or `unknown`",
            "channels": "rings, trees, or connections of a pair",
            "nodes": "how many servers; none: as the topology says",
            "protocols": "those that may have run; the fastest counts",
            "files": "MSCCL files of which the fastest counts",
            "times": "bytes of the counted buffer: microseconds",
        },
        ("groups", "GroupsFile"): {
            "taccl": "which format this is",
            "name": "what results call it",
            "ranks": "how many; the topology has as many",
            "groups": "who calls what",
            "relays": "who may relay the data of a group: its `members`, `all`, or ranks",
            "objective": "`makespan`: the last end; `weighted`: the sum of weight x end",
        },
        ("groups", "GroupRecord"): {
            "name": "what results and files call it",
            "collective": "a name of the table; each instance does it",
            "size": "bytes of the buffer that nccl-tests counts",
            "each": "ranks of every instance, in the order of their communicators, none in two; or"
            " `{stride: s, count: c}`: r, r + s, ... for all r that are in none before, which must"
            " cover all ranks",
            "chunks": "for each rank: a number, or `auto`",
            "start": "when it begins",
            "weight": "of its end, with the objective `weighted`",
            "root": "a place among the members, where the collective has one; none: 0",
            "files": "of an index: the program of every instance, below the index",
        },
        ("workload", "WorkloadFile"): {
            "taccl": "which format this is",
            "name": "what results call it",
            "ranks": "how many; the topology has as many",
            "batch": "samples of a step, and who has how many; none: all as many",
            "speed": "of ranks, by number: how fast they compute; all others: 1",
            "groups": "ranks that communicate, by name; `all` is there anyway",
            "layers": "in the order of the forward pass",
            "sync": "how gradients are summed",
            "input": "what a step waits for",
            "ops": "in place of layers: what ranks do, one by one; what `--expand` prints",
            "period": "of operations: steps after which all repeats",
            "by_priority": "of operations: streams that run by priority, not in order",
        },
        ("workload", "OperationRecord"): {
            "id": "what others wait for; a number or a name",
            "name": "what traces call it; none: as `id`",
            "on": "ranks that run it; of a collective `all` are those of its group",
            "compute": "time of a computation",
            "collective": "or the name of a collective",
            "group": "whose ranks call it",
            "bytes": "as nccl-tests counts them",
            "via": "its algorithm, as `taccl step --via` takes it; none: what that says",
            "stream": "those of a stream run one after the other; none: `compute`, or the group",
            "after": "operations of the same ranks that have to be over",
            "priority": "in a stream by priority the least is first",
            "step": "which step it is of",
            "listens": "it takes a message: who sends does not wait for it",
        },
        ("workload", "BatchRecord"): {
            "samples": "of all ranks together",
            "by": "`even`, `weighted` by the speed of ranks, or the samples of each rank",
        },
        ("workload", "GroupRecord"): {
            "each": "the groups of that name, as many ranks each, which call collectives at once;"
            " or `{stride: s, count: c}`, as in files of groups"
        },
        ("workload", "LayerRecord"): {
            "name": "what traces call it",
            "bytes": "of its gradients",
            "forward": "time of its forward pass, at the even share and speed 1",
            "backward": "time of its backward pass",
            "comm": "collectives that it waits for",
        },
        ("workload", "LayerCall"): {
            "when": "in which pass",
            "at": "before the pass, or after it",
            "collective": "its name",
            "group": "whose ranks call it",
            "bytes": "as nccl-tests counts them",
            "split": "pieces in which it and the pass run, one after the other",
            "via": "its algorithm, as `taccl step --via` takes it; none: what that says",
        },
        ("workload", "SyncRecord"): {
            "group": "whose ranks sum",
            "collective": "its name",
            "bytes": "`gradients`, or what is sent instead",
            "bucket": "a sum begins when so many gradients are ready; `all`: with the last",
            "first": "the same for the first bucket, unless `bucket` is `all`",
            "order": "`fifo`, or `priority`: the first layers' sums before others that wait",
            "partition": "largest piece of a sum; none: whole buckets",
            "wait": "a pass waits for all sums of the `step` before, or each `layer` for its own",
            "overlap": "sums run beside the `backward` pass, or after it (`none`)",
            "every": "sums are made in every so many steps",
            "hide": "1: a sum is waited for one period later",
            "factor": "of the bytes that are sent, such as of a compression",
            "cost": "time to compress a megabyte",
            "via": "its algorithm, as `taccl step --via` takes it; none: what that says",
        },
        ("workload", "InputRecord"): {"time": "to read the data; runs beside the step before"},
        ("scenario", "ScenarioFile"): {
            "taccl": "which format this is",
            "name": "what results call it",
            "seed": "what is drawn at random follows from it",
            "runs": "how often, with jitter; none: 20",
            "background": "traffic of others",
            "stragglers": "ranks that are late or slow",
            "jitter": "random delays",
            "degraded": "edges with less bandwidth, or none",
            "changes": "bandwidth that changes on the way",
            "also": "other programs on the same edges",
        },
        ("scenario", "BackgroundRecord"): _ON_EDGES
        | {
            "share": "the part of the bandwidth that others take",
            "size": "instead of a share: bytes of a message",
            "period": "from one such message to the next",
            "start": "when the first one is due",
        },
        ("scenario", "StragglerRecord"): {
            "ranks": "which",
            "late": "when their threadblocks begin",
            "slow": "how many times as long their sends and local work take",
        },
        ("scenario", "JitterRecord"): {
            "message": "more alpha for each message",
            "start": "when each rank begins",
        },
        ("scenario", "DistributionRecord"): {
            "distribution": "`uniform`: from 0 to twice the mean",
            "mean": "of the delay",
        },
        ("scenario", "DegradedRecord"): _ON_EDGES
        | {
            "factor": "the part of the bandwidth that is left",
            "down": "`true`: a program that needs the edge is refused",
        },
        ("scenario", "ChangeRecord"): _ON_EDGES
        | {
            "at": "from when on, counted from the start of the replay",
            "factor": "the part of the bandwidth that is left from then on",
        },
        ("scenario", "AlsoRecord"): {
            "program": "an XML file, relative to this one",
            "size": "its bytes; none: as the first program",
            "ranks": "which run it, the r-th of these its rank r; none: all",
            "start": "when it starts",
        },
        ("schedule", "CollectiveFile"): _COLLECTIVE,
        ("schedule", "ChunkRecord"): _CHUNK,
        ("schedule", "SendsRecord"): {
            "chunk": "number of the chunk",
            "link": "number of the link, in the order of (source, destination, path)",
            "batch": "sends with the same batch are one message",
            "reduce": "1 when the receiver adds the chunk to what it has",
            "start_ps": "when the message starts, in picoseconds",
            "end_ps": "when it has arrived, in picoseconds",
        },
        **{("library", record): fields for record, fields in LIBRARY_MEANINGS.items()},
    }
    return {
        (*place, field): text for place, fields in nested.items() for field, text in fields.items()
    }


MEANINGS: Mapping[tuple[str, str, str], str] = _flat()
"""(format, record, field) to what the field means."""

XML_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "algo": {
        "name": "the program's label, at most 63 characters",
        "proto": "`Simple`, `LL` or `LL128`",
        "nchannels": "channels in use",
        "nchunksperloop": "into how many chunks the counted buffer is cut",
        "ngpus": "ranks",
        "coll": "the collective, as the runtime spells it",
        "inplace": "1: serves calls whose input and output are one buffer",
        "outofplace": "1: serves calls with two buffers",
        "minBytes": "smallest size it serves",
        "maxBytes": "largest size it serves (msccl: the first that is too large)",
    },
    "gpu": {
        "id": "rank",
        "i_chunks": "chunks in its input",
        "o_chunks": "chunks in its output",
        "s_chunks": "chunks of scratch memory it needs",
    },
    "tb": {
        "id": "threadblock of the rank, from 0",
        "send": "rank it sends to, or -1; taccl's threadblocks only send or only receive",
        "recv": "rank it receives from, or -1",
        "chan": "channel of its connection",
    },
    "step": {
        "s": "position in the threadblock",
        "type": "what it does, see below",
        "srcbuf": "`i` input, `o` output, `s` scratch",
        "srcoff": "chunk in that buffer",
        "dstbuf": "`i`, `o` or `s`",
        "dstoff": "chunk in that buffer",
        "cnt": "neighbouring chunks that move together, at most 71",
        "depid": "threadblock of the same rank to wait for, or -1",
        "deps": "step of that threadblock",
        "hasdep": "1: another step waits for this one",
    },
}

XML_OPS: Mapping[str, str] = {
    "s": "send the source",
    "r": "receive into the target",
    "cpy": "copy source to target",
    "re": "add source to target",
    "nop": "only wait: one more dependence for the next step",
    "rcs": "receive into the target and send it on (read, not written)",
    "rrc": "receive, add the source, store in the target (read, not written)",
    "rrs": "receive, add the source, send (read, not written)",
    "rrcs": "receive, add the source, store and send (read, not written)",
}

EXIT_STATUSES: Mapping[int, str] = {
    0: "done",
    1: "verification failed: the findings are printed; or what `topology diff` compares differs",
    2: "bad input or usage, a limit of the runtime, or a file that can't be read or written",
    3: "infeasible: no schedule exists; the error names a rank that can't be served",
    4: "the time limit passed, or the user gave up, before anything was found",
}

JSON_FIELDS: Mapping[str, Mapping[str, str]] = {
    "taccl synthesize": {
        "collective": "the collective",
        "topology": "name of the topology",
        "ranks": "how many",
        "size_bytes": "the size asked for",
        "replay_size_bytes": "that size cut to whole chunks of elements: what was replayed; null"
        " with `--runtime none`",
        "chunk_bytes": "bytes of a chunk in the schedule, exact where possible",
        "chunks_per_rank": "the chosen chunk count",
        "engine": "who found the schedule",
        "status": "`optimal` (a bound proves it), `feasible`, `time_limit` or `interrupted`",
        "makespan_us": "time of the schedule",
        "replay_us": "modelled time of the program; null with `--runtime none`",
        "bound_us": "no algorithm, chunking or batching is faster on this topology",
        "bound_kind": "the idea behind that bound",
        "bound_fixed_us": "nothing with this chunk count and one chunk to a message is faster;"
        " null when the schedule batches",
        "bound_sketch_us": "no algorithm on the sketch's links is faster; null without a sketch",
        "bound_engine_us": "no schedule under the same sketch, chunk count and `--batch` is faster,"
        " proved by engine `exact`; null where nothing was proved",
        "gap": "time / `bound_us` - 1, the time being `replay_us` if there is one",
        "gap_fixed": "`makespan_us` / `bound_fixed_us` - 1",
        "algbw_gbps": "replayed size / time",
        "busbw_gbps": "`algbw_gbps` times the factor of nccl-tests",
        "seconds": "wall clock from the start of the command, but for compiling",
        "ended_by": "what ended the search: `bound` (within 0.5 % of it), `search` (nothing left"
        " to try), `clock` or `user`",
        "turns": "what each engine made of each turn, in order: `chunks_per_rank`, `seconds`,"
        " `score_us` (null: nothing in the running), `won_us` over the best before it",
        "compile_seconds": "wall clock of compiling, on a new machine; not part of `seconds`",
        "seed": "of the search",
        "profile": "what messages and programs are charged: `alpha-beta` or `measured`",
        "alpha_rule": "`occupy`, `delay` or `explicit`",
        "costs": "`exact` or `original` for an imported TACCL topology, else null",
        "sends": "chunks crossing links, all orbits expanded",
        "protocol": "`Simple`, `LL` or `LL128`; null with `--runtime none`",
        "threadblocks": "the most of any rank; null with `--runtime none`",
        "channels": "in use; null with `--runtime none`",
        "steps": "the most of any threadblock; null with `--runtime none`",
        "verified": "true: nothing is printed that a judge objects to",
        "sketch_cost": "time / the best time known without the sketch - 1; null without a sketch,"
        " or with an engine other than `auto`",
        "free_us": "the best time that a short search found without the sketch, else null",
        "candidates": "all that was compared: engine, chunks_per_rank, makespan_us, score_us (by"
        " replay; null with the reason why it is out of the running)",
        "output": "the files that were written",
        "deploy": "by runtime: `environment` and `pitfalls` of the XML file; null without `-o`",
    },
    "taccl evaluate": {
        "file": "the XML file",
        "program": "its label",
        "collective": "what it does",
        "topology": "where it was replayed",
        "ranks": "how many",
        "engine": "empty: a file does not say",
        "alpha_rule": "`occupy`, `delay` or `explicit`; `measured` with measured costs",
        "costs": "the profile on a machine with measured costs; `exact` or `original` for an"
        " imported TACCL topology, else null",
        "size_bytes": "bytes of the buffer that nccl-tests counts",
        "time_us": "modelled time; null when it can't run at this size",
        "algbw_gbps": "size / time",
        "busbw_gbps": "`algbw_gbps` times the factor of nccl-tests",
        "bound_us": "no program is faster",
        "bound_kind": "the idea behind the bound",
        "gap": "time / bound - 1",
        "bottleneck": "the edge that was busy longest",
        "utilisation": "the part of the time that it was busy",
        "note": "why there is no time, that the size is outside the file's range, or what is wrong"
        " with the result",
        "scenario": "name of the scenario; null without one, as all of the next five",
        "runs": "how often it was replayed; `time_us` is the mean",
        "plain_us": "modelled time without the scenario",
        "p50_us": "time that half of the runs do not exceed; null without jitter",
        "p99_us": "time that 99 % of the runs do not exceed; null without jitter",
        "other_us": "mean time of the slowest of a scenario's other programs, from its start"
        "; null without one",
        "background_p50_us": "what half of the background's messages do not exceed, from when they"
        " are due to when they are there; null without",
        "background_p99_us": "the same for 99 % of them",
        "in_place": "whether it serves calls in place",
        "out_of_place": "whether it serves calls out of place",
        "wrong": "elements of all outputs that are wrong in the worse mode; null: not known, as the"
        " collective is not, or as they depend on which threadblock is first",
    },
    "taccl run": {
        "file": "the XML or schedule file",
        "collective": "what it does",
        "ranks": "how many processes",
        "size_bytes": "bytes of the buffer that nccl-tests counts",
        "in_place": "whether input and output were one buffer",
        "dtype": "type of the numbers",
        "over": "what carried messages: `shared memory`, `tcp`, `mpi` or `emulated`",
        "time_us": "measured time of a call: the median of `times_us`",
        "times_us": "each measurement, divided by its calls",
        "spread": "standard deviation of the measurements by their mean; null for a single one",
        "algbw_gbps": "size / time",
        "busbw_gbps": "`algbw_gbps` times the factor of nccl-tests",
        "wrong": "elements of all outputs that are wrong; null: nobody knows what is right",
        "predicted_us": "time by the replay; null without a topology",
        "off": "predicted / measured time - 1; null without a topology",
        "costs": "what the prediction charges: an alpha rule, or `measured`; null without one",
    },
    "taccl step": {
        "workload": "its name",
        "topology": "name of the topology",
        "ranks": "how many",
        "profile": "what messages are charged: `alpha-beta` or `measured`",
        "via": "algorithm of collectives: what `--via` says, or `library`",
        "step_us": "time of a step, once steps repeat",
        "compute_us": "passes of the ranks that take longest",
        "exposed_us": "by group: how long these ranks compute nothing while its collective runs;"
        " `waiting` for anything else",
        "bound_us": "no order of the same operations is quicker: passes, and the fullest edge",
        "gap": "step / bound - 1",
        "steady": "whether steps repeat; else `step_us` is a mean of the last ones",
        "bytes": "by group: what a step's collectives count",
        "if": "time of a step, in microseconds, if something were different",
        "against": "by another algorithm (`--against`): `via`, `step_us`, `exposed_us`, and which"
        " part of its step is `saved`; null without one",
        "policies": "of `--sweep`, the quickest first: `policy` and `step_us`",
    },
    "taccl compare": {
        "collective": "the collective",
        "topology": "name of the topology",
        "ranks": "how many",
        "alpha_rule": "`occupy`, `delay` or `explicit`, and how imported costs were taken",
        "runtime": "whose constants the replay has",
        "nccl_inputs": "what NCCL's model was given, in the form of `--nccl`; null without a model",
        "rows": "for each size and contender: size_bytes, contender, kind (algorithm, file, nccl:"
        " what NCCL would run, nccl-way: one algorithm and protocol of its model), below_bound"
        " (whether that is less than any algorithm can take), nccl_runs (of an nccl-way: whether"
        " NCCL would run it), time_us,"
        " algbw_gbps, busbw_gbps, bound_us, bound_kind, gap (null for NCCL: the bound does"
        " not hold for it), fastest, program (its label), note",
        "crossovers": "each with size_bytes, from which on `after` is faster than `before`",
        "nccl_switches": "the same of what NCCL would run, by algorithm and protocol",
        "nccl_crossovers": "the same of NCCL's model and the fastest of all that is replayed",
        "absent": "algorithms that are not compared: why",
        "out_of_race": "contenders that can't be the fastest: why",
    },
    "taccl place": {
        "program": "label of the program that was replayed",
        "collective": "what it does",
        "topology": "name of the machine; `measured`: that of the measurements",
        "ranks": "how many",
        "servers": "how many, each of which takes consecutive ranks",
        "alpha_rule": "`occupy`, `delay` or `explicit`",
        "size_bytes": "replayed, cut to whole chunks",
        "order": "for each rank the place that takes it: a row of the matrix, or a rank"
        " of the topology",
        "hosts": "the same as records: host and slot",
        "time_us": "replayed time in this order",
        "identity_us": "that in the order as given",
        "random": "random orders that were replayed to compare with",
        "random_mean_us": "the mean of their times; null without any",
        "random_best_us": "the least of them; null without any",
        "gain_identity": "`identity_us` by `time_us`",
        "gain_random": "`random_mean_us` by `time_us`; null without random orders",
        "bound_us": "what no order can beat; null where no bound is known",
        "optimal": "whether it is proved that no order is faster",
        "replays": "orders that were replayed",
        "ended": "why the search ended: `all` (every order was replayed), `bound` (it was met),"
        " `settled`, `time`, `replays` or `interrupted`",
        "routed": "whether some pairs have no link and are replayed over other ranks",
        "outputs": "the files that were written, by kind",
    },
    "taccl calibrate": {
        "collective": "what was measured",
        "topology": "name of the topology before",
        "ranks": "how many",
        "alpha_rule": "`occupy`, `delay` or `explicit`",
        "program": "label of the program that was replayed",
        "rows": "for each measured size: file, size_bytes, measured_us, and before and after the"
        " calibration the replayed time and its relative error: before_us, before_error, after_us,"
        " after_error",
        "error_before": "root mean square of the relative errors with the given topology",
        "error_after": "the same with the calibrated one",
        "parameters": "what was fitted: name, unit, before and after (of edges those of the first"
        " link; null: free), and whether the runs determine it: `yes`, `if those not told apart"
        " are right`, or `no`",
        "left_out": "measured sizes that were not used, and why",
        "output": "the file that was written, or null",
    },
    "taccl measured": {
        "name": "of the table",
        "source": "who measured",
        "machine": "on what",
        "rows": "for each size: collective, ranks, what (ran), place, bytes, measured_us,"
        " replayed_us (null: no program runs at this size), and program, the fastest",
        "not_replayed": "runs that were not: collective, what, and why",
    },
    "taccl verify": {
        "file": "the XML file",
        "verified": "whether some runtime runs it right",
        "verdicts": "for msccl, executor and rccl each: `runtime`; `verified`, whether nothing is"
        " worse than a warning; `severity`, the worst finding: `rejected`, `breaks`, `never`, or"
        " null; `largest_safe_bytes`, up to this size no call deadlocks (null: no limit, or not"
        " looked at); `safe_at_any_size`; `selected_for`, the calls that run the file: runtime,"
        " call, ranks, min_bytes, max_bytes, modes, divisor, divided (elements or bytes), needs"
        " (environment); `findings`, each with rule, severity, explanation, gpu, threadblock, step,"
        " line, column and fix. With `--runtime` the file has these fields itself, and no list",
    },
    "taccl inspect": {
        "name": "as the file says",
        "collective": "the collective",
        "protocol": "Simple, LL or LL128",
        "ranks": "how many",
        "in_place": "whether calls in place are served",
        "out_of_place": "whether calls out of place are served",
        "min_bytes": "smallest size",
        "max_bytes": "largest size; null: no limit",
        "chunks": "nchunksperloop: a chunk is this share of the size",
        "channels": "nchannels",
        "threadblocks": "the most on a rank",
        "steps": "the most in a threadblock",
        "ops": "steps by type",
        "size_bytes": "the size of amounts in bytes, cut to whole chunks; null without `--size`",
        "per_rank": "each with rank, threadblocks, steps, channels, connections, peers, chunks and"
        " bytes, out and in",
        "pairs": "each with src, dst, channels, steps, chunks and bytes",
    },
    "taccl bound": {
        "collective": "the collective",
        "topology": "name of the topology",
        "size_bytes": "bytes of the buffer that nccl-tests counts",
        "alpha_rule": "`occupy`, `delay` or `explicit`",
        "costs": "`exact` or `original` for an imported TACCL topology, else null",
        "chunks_per_rank": "what the fixed bounds are for",
        "bound_us": "no algorithm, chunking or batching is faster",
        "bound_kind": "the idea behind it",
        "all": "the bound of every kind",
        "bound_fixed_us": "nothing with this chunk count and one chunk to a message is faster",
        "bound_fixed_kind": "the idea behind it",
        "all_fixed": "the fixed bound of every kind",
        "bound_sketch_us": "no algorithm on the sketch's links is faster; null without a sketch",
        "bound_sketch_kind": "the idea behind it",
        "all_sketch": "that bound of every kind",
        "kinds": "what each kind says",
        "worlds": "what the bounds of each world (`any`, `point-to-point`, `fixed`, `sketch`) hold"
        " for; where switches copy or add there are `bound_point_to_point_us`,"
        " `bound_point_to_point_kind` and `all_point_to_point`, too",
        "assumed": "what all of them assume",
    },
    "taccl tune": TUNE_FIELDS,
    "taccl explain": EXPLAIN_FIELDS,
    "taccl topology show": {
        "name": "of the topology",
        "ranks": "how many",
        "servers": "the ranks of each",
        "switches": "their names",
        "edges": "in the graph",
        "links": "from rank to rank",
        "alpha_rule": "`occupy`, `delay` or `explicit`",
        "costs": "`exact` or `original` for an imported TACCL topology, else null",
        "rotations": "declared symmetries",
        "digest": "of all that a file can say; a schedule carries it",
        "send_gbps": "what each rank can send: over its edges, and its share of NICs and switches"
        " that it reaches over an edge without a bandwidth",
        "receive_gbps": "what each rank can receive",
        "paths": "kinds of links: cell, path (what the letter means), bandwidth_gbps of the slowest"
        " edge (null: none has any), alpha_us, edges (on the way), links (how many), from_a_rank"
        " (least and most), example (source and destination)",
        "unlinked_pairs": "pairs of ranks without a link",
        "matrix": "the cells, row by row; null above 32 ranks",
        "output": "the files that were written",
    },
    "taccl topology validate": {
        "name": "of the topology; null when it can't be read, as all counts",
        "ranks": "how many",
        "edges": "in the graph",
        "links": "from rank to rank",
        "rotations": "declared symmetries",
        "usable": "whether there is no error",
        "findings": "each with rule (`unread`: it can't be read), severity (`error`, `warning` or"
        " `note`), file, line and field as far as known, where (edges, switches, ranks or pairs),"
        " problem and fix",
    },
    "taccl topology diff": {
        "a": "name of the first",
        "b": "name of the second",
        "same": "whether they are the same but for their names",
        "facts": "each with a and b: ranks, servers, switches, edges, links, alpha_rule, symmetries"
        " (that the rotations span; null: too many or none), chunk_size, send_gbps and receive_gbps"
        " of a rank (least and most), allgather_bound_us and alltoall_bound_us for 1 MB a rank"
        " (null above 256 ranks)",
        "edges": "added, removed and changed, each with name and, in a and b, its ends and costs",
        "links": "pairs of ranks with links added, removed and changed",
    },
    "taccl topology list": {
        "name": "what commands call it",
        "ranks": "in one server, or of the shape",
        "edges": "in the graph",
    },
}
"""Fields of ``--json`` by command; of ``evaluate``, ``verify`` and ``topology list`` those of an
entry of ``rows``, ``files`` and ``topologies``."""

EXPLANATION_FIELDS: Mapping[str, str] = {
    "file": "the XML file",
    "program": "its label",
    "size_bytes": "bytes of the buffer that nccl-tests counts",
    "time_us": "modelled time; null when it can't run at this size",
    "note": "as in the row; or why nothing is explained, and then no field follows",
    "time_ps": "the time in picoseconds",
    "parts": "what the critical path is made of: part, time_ps, spans (the same for alpha and"
    " bandwidth), and alpha_ps, what of the time is alpha of messages; the times add up to"
    " `time_ps`",
    "path": "the critical path: its first and last span, and how many spans it has",
    "bottleneck": "the edge that was busy longest",
    "utilisation": "the part of the time that it was busy",
    "twice_as_fast_us": "the time by a replay in which the bottleneck has half its beta",
    "then_bottleneck": "the edge that is busy longest in that replay",
    "then_utilisation": "the part of its time that it is busy",
    "alpha_on_path": "edges whose alpha the critical path pays",
    "overhead_on_path": "edges whose own overhead it pays",
    "beta_on_path": "edges whose beta it pays: the slowest of a message, or the one queued for",
    "local_on_path": "which of launch, copy and reduce it pays",
    "edges_off_path": "edges that carry messages, and of which it pays nothing",
    "off_path_twice_as_fast_us": "the time by a replay in which all of those have half their alpha,"
    " overhead and beta: the same, unless messages then meet in another order; null without any",
    "edges_unused": "edges that carry nothing: changing them changes nothing",
    "bound_us": "no program is faster",
    "bound_kind": "the idea behind the bound",
    "gap": "time / bound - 1",
}
"""Fields of an entry of ``explanations``, which ``evaluate --explain --json`` gives."""
