"""The matrix of a topology: a letter and a bandwidth for each pair, and what the letters mean."""

from fractions import Fraction

from taccl.report.graph import MAX_RANKS, Matrix, matrix_text, topology_fields
from taccl.topology.file import MAX_TOLD, load_topology, topology_digest
from tests.generators import build, random_topology, twin2x2
from tests.sweep import for_each


def test_a_cell_says_what_joins_two_ranks_and_how_fast() -> None:
    matrix = Matrix(load_topology("pcie-a100", nodes=2))
    cells = [matrix.cell(0, dst) for dst in (0, 1, 2, 4)]
    assert cells == ["X", "L300", "S24", "N10"]
    assert Matrix(load_topology("ndv2")).cell(0, 5) == "."


def test_parallel_links_are_counted_by_kind() -> None:
    # 1, 1 and 2 ps a byte, and one that is free.
    betas = (Fraction(1), Fraction(1), Fraction(2), None)
    matrix = Matrix(build("net", 2, [(0, 1, 5, None, beta) for beta in betas]))
    assert matrix.cell(0, 1) == "2xL1000+L500+..."
    assert (matrix.cell(1, 0), matrix.unlinked) == (".", 1)
    assert [kind.cell for kind in matrix.kinds] == ["Lfree", "L1000", "L500"]


def test_the_slowest_edge_on_the_way_counts() -> None:
    # NICs of 4 ps a byte between wires of 1 ps a byte.
    assert Matrix(twin2x2()).cells() == [
        ["X", "L1000", "N250", "N250"], ["L1000", "X", "N250", "N250"],
        ["N250", "N250", "X", "L1000"], ["N250", "N250", "L1000", "X"],
    ]  # fmt: skip


def test_the_text_is_a_matrix_and_a_legend() -> None:
    assert matrix_text(load_topology("mesh:3@25GB/s,1us")).splitlines() == [
        "rank    0   1   2",
        "0       X L25   .",
        "1     L25   X L25",
        "2       . L25   X",
        "",
        "cell  alpha  links    per rank  path",
        "L25   1 us   4        1-2       a direct link, such as 0 -> 1",
        ".     -      2 pairs            no link: other ranks forward",
        "numbers in cells are GB/s of the slowest edge; 2xL25 is two links",
    ]


def test_beyond_what_can_be_read_there_is_a_line_for_each_kind_of_links() -> None:
    text = matrix_text(load_topology("dgx-h100", nodes=8)).splitlines()
    assert text[1].split()[:4] == ["S450", "0.7", "us", "448"]
    assert text[1].endswith("over switches, such as 0 -> 1")
    assert text[2].split()[:5] == ["N50", "1.7", "us", "448", "7"]
    assert text[-1] == f"no matrix is printed above {MAX_RANKS} ranks"
    assert len(text) == 6


@for_each("seed", range(20))
def test_kinds_and_cells_count_every_link_once(seed: int) -> None:
    topology = random_topology(seed)
    matrix = Matrix(topology)
    assert sum(kind.links for kind in matrix.kinds) == len(topology.links)
    for kind in matrix.kinds:
        (*_, link) = topology.links_between(*kind.example)
        assert topology.link(link).src == kind.example[0]
        assert kind.least <= kind.most
    empty = sum(cell == "." for row in matrix.cells() or [] for cell in row)
    assert empty == matrix.unlinked


def test_the_fields_hold_the_matrix_and_what_each_rank_sends() -> None:
    topology = load_topology("dgx-a100", nodes=2)
    found = topology_fields(topology, topology_digest(topology))
    assert found["servers"] == [list(range(8)), list(range(8, 16))]
    assert found["send_gbps"] == found["receive_gbps"] == [325.0] * 16
    assert isinstance(found["matrix"], list)
    assert found["matrix"][0][8] == "N25"
    assert topology_fields(load_topology("hub:33"), "")["matrix"] is None


def test_where_many_kinds_differ_the_legend_has_the_first() -> None:
    # Rank 0 has a wire to each of 26 others, each of another bandwidth, in one direction.
    hops = [(0, dst, 0, None, Fraction(dst)) for dst in range(1, 27)]
    topology = build("net", 27, hops)
    kinds = Matrix(topology).kinds
    assert [(kind.links, kind.least, kind.most, kind.example) for kind in kinds] == [
        (1, 0, 1, (0, dst)) for dst in range(1, 27)
    ]
    lines = matrix_text(topology).splitlines()
    assert sum(line.endswith(f"direct link, such as 0 -> {dst}") for dst in range(1, 27)
               for line in lines) == MAX_TOLD  # fmt: skip
    assert "... and 2 more kinds: see --json" in lines
    paths = topology_fields(topology, "")["paths"]
    assert isinstance(paths, list)
    assert len(paths) == 26
    all_told = matrix_text(build("net", 27, hops[:MAX_TOLD]))
    assert "more kinds" not in all_told


@for_each("seed", range(20))
def test_kinds_say_how_many_links_leave_a_rank(seed: int) -> None:
    topology = random_topology(seed)
    matrix, ranks = Matrix(topology), range(topology.num_ranks)
    of_link = matrix._kinds[1].tolist() if matrix.kinds else []
    for number, kind in enumerate(matrix.kinds):
        senders = [int(src) for src, k in zip(topology.links.src, of_link, strict=True)
                   if k == number]  # fmt: skip
        each = [senders.count(rank) for rank in ranks]
        assert (kind.links, kind.least, kind.most) == (len(senders), min(each), max(each))
        assert kind.example[0] == senders[0]


def test_a_topology_without_links_has_an_empty_matrix() -> None:
    assert Matrix(build("net", 2, [])).kinds == ()
