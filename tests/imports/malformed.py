"""Texts that are no description of a host, each with what is said of it and in which line.

A case is (what to replace, by what, a part of the message, the line); nothing to replace stands for
the whole text.
"""

Case = tuple[str | None, str | bytes, str, int]

SMI = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\tX\tNV4\tPIX\t0-31\t0\n"
    "GPU1\tNV4\tX\tSYS\t32-63\t1\n"
    "NIC0\tPIX\tSYS\tX\n"
    "\nLegend:\n  X = Self\n"
)
ROW0, ROW1, ROW2 = (line + "\n" for line in SMI.split("\n")[1:4])
MANY = "\t" + "\t".join(f"GPU{n}" for n in range(257)) + "\n"
CROWD = "\tGPU0\t" + "\t".join(f"NIC{n}" for n in range(1024)) + "\n"

NVIDIA_SMI: tuple[Case, ...] = (
    (None, "", "no header line", 1),
    (None, "\n \n\t\n", "no header line", 1),
    (None, "hello\n", "no header line", 1),
    (None, "\x00\x01\x02\x7f" * 50, "no header line", 1),
    (None, b"\tGPU0\nGPU0\t\xff\xfe\n", "is not UTF-8", 2),
    (None, b"\x89PNG\r\n\x1a\n\x00", "is not UTF-8", 1),
    (None, "bash: nvidia-smi: command not found\n", "no header line", 1),
    (None, "No devices were found\n", "no header line", 1),
    (None, "<!DOCTYPE html><html></html>", "no header line", 1),
    (None, '{"GPU0": {"GPU1": "NV4"}}', "no header line", 1),
    (None, "taccl: topology/1\nname: x\n", "no header line", 1),
    (None, "\tNIC0\tNIC1\nNIC0\tX\tPIX\nNIC1\tPIX\tX\n", "no header line", 1),
    (None, MANY, "has 257 devices, more than 256 GPUs", 1),
    (None, CROWD, "has 1025 devices", 1),
    (None, SMI.split("\n")[0], "there is no row for 'GPU0'", 1),
    ("\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n", "", "no header line", 1),
    ("\tGPU0\tGPU1\tNIC0\tCPU", "\tCPU Affinity\tGPU0\tGPU1\tNIC0\tCPU", "no header line", 1),
    ("\tGPU0\tGPU1", "\tGPU99999999\tGPU1", "no header line", 1),
    ("Affinity\n", "Affinity ", "no header line", 1),
    ("\tGPU0\tGPU1", "\tGPU0\tGPU0", "two columns 'GPU0'", 1),
    ("NIC0\tCPU", "NIC0\tNIC0\tCPU", "two columns 'NIC0'", 1),
    ("\tGPU0\tGPU1", "\tGPU0\tGPU2\tGPU1", "there is no row for 'GPU2'", 1),
    (ROW1, "", "there is no row for 'GPU1'", 1),
    (ROW2, "", "there is no row for 'NIC0'", 1),
    (ROW1, ROW1 + ROW1, "two rows 'GPU1'", 4),
    (ROW2, ROW2 + ROW0, "two rows 'GPU0'", 5),
    (ROW1, "GPU1\tNV4\n", "has 1 cells, the header 3 devices", 3),
    (ROW1, "GPU1\n", "has 0 cells", 3),
    (ROW0, "GPU0\tX\n\tNV4\tPIX\t0-31\t0\n", "'NV4' is no device of the header", 3),
    (ROW0, "X\tNV4\tPIX\t0-31\t0\n", "'X' is no device of the header", 2),
    (ROW0, "GPU0\tX\tNV4\t0-31\t0\n", "'GPU0' to 'NIC0' is '0-31'", 2),
    (ROW0, ROW0.strip() + "\tPIX\tPIX\n", "has 7 cells, too many", 2),
    (ROW2, "NIC0\tPIX\tSYS\tX\t0\t0\t0\n", "has 6 cells, too many", 4),
    (ROW1, "GPU7\tNV4\tX\tSYS\n", "'GPU7' is no device", 3),
    (ROW2, "NIC5\tPIX\tSYS\tX\n", "'NIC5' is no device", 4),
    (ROW1, "------\n" + ROW1, "'------' is no device", 3),
    (ROW1, ROW1.replace("GPU1", "GPU\uff11"), "is no device of the header", 3),
    ("X\tNV4\tPIX", "X\tFOO\tPIX", "'GPU0' to 'GPU1' is 'FOO'", 2),
    ("X\tNV4\tPIX", "X\tNV4\tpix", "is 'pix'", 2),
    ("X\tNV4\tPIX", "X\tNV\tPIX", "is 'NV'", 2),
    ("X\tNV4\tPIX", "X\tNV0\tPIX", "is 'NV0': no such NVLinks", 2),
    ("X\tNV4\tPIX", "X\tNV65\tPIX", "no such NVLinks", 2),
    ("X\tNV4\tPIX", "X\tNV99999999999\tPIX", "is 'NV99999999999'", 2),
    ("X\tNV4\tPIX", "X\tNV-4\tPIX", "is 'NV-4'", 2),
    ("X\tNV4\tPIX", "X\tNV4.5\tPIX", "is 'NV4.5'", 2),
    ("X\tNV4\tPIX", "X\t25\tPIX", "is '25'", 2),
    ("X\tNV4\tPIX", "X\tNV4\tPIX\x07", "is 'PIX\\x07'", 2),
    ("X\tNV4\tPIX", f"X\tNV4\t{'P' * 100_000}", "is 'PPPP", 2),
    ("X\tNV4\tPIX", "X\tNV4\t\U0001f600", "is '\U0001f600'", 2),
    ("X\tNV4\tPIX", "PIX\tNV4\tPIX", "'GPU0' to 'GPU0' is 'PIX'", 2),
    ("X\tNV4\tPIX", "X\tX\tPIX", "'GPU0' to 'GPU1' is 'X'", 2),
    ("X\tNV4\tPIX", "X\tNV4\tNV2", "is 'NV2': no such NVLinks", 2),
    ("GPU1\tNV4", "GPU1\tNV2", "is 'NV2', but back it is 'NV4'", 3),
    ("GPU1\tNV4", "GPU1\tSYS", "is 'SYS', but back it is 'NV4'", 3),
    ("NIC0\tPIX\tSYS", "NIC0\tPHB\tSYS", "is 'PHB', but back it is 'PIX'", 4),
    ("NIC0\tPIX\tSYS", "NIC0\tPIX\tNODE", "is 'NODE', but back it is 'SYS'", 4),
)  # fmt: skip

XML = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:10:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80"><nvlink target="0000:11:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:11:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="80"><nvlink target="0000:10:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:30:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="mlx5_0" dev="0" speed="200000"/></nic>
    </pci>
  </cpu>
</system>
"""
BOMB = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>\n'
    '<system version="&b;"/>'
)
OUTSIDE = '<!DOCTYPE x SYSTEM "file:///etc/passwd">\n<system version="1"/>'
DEEP = '<system version="1">\n<cpu>' + '<pci busid="1">' * 70
WIDE = '<system version="1">\n' + '<cpu numaid="1"/>' * 5000
FIRST, SECOND = 'busid="0000:10:00.0"', 'busid="0000:11:00.0"'
LINK = '<nvlink target="0000:11:00.0" count="4" tclass="0x030200"/>'
GPU0 = '<gpu dev="0" sm="80">'

NCCL: tuple[Case, ...] = (
    (None, "", "is no XML", 1),
    (None, "   \n", "is no XML", 2),
    (None, "GPU0 GPU1\n", "is no XML", 1),
    (None, "\x00\x01", "is no XML", 1),
    (None, b"<system>\n\xff\xfe</system>", "is not UTF-8", 2),
    (None, BOMB, "document types and entities are refused", 1),
    (None, OUTSIDE, "document types and entities are refused", 1),
    (None, DEEP, "has more than 64 levels", 2),
    (None, WIDE, "has more than 4096 elements", 2),
    (None, "<a>" + "x" * (1 << 20), "is larger than 1 MiB", 1),
    (None, "<system version='1'>", "is no XML", 1),
    (None, "<system version='1'/><system/>", "is no XML", 1),
    (None, "<?xml version='1.0' encoding='klingon'?>\n<system/>", "has no <gpu>", 2),
    (None, "<graphs version='1'/>", "starts with <graphs>, not <system>", 1),
    (None, "<algo name='x'/>", "starts with <algo>", 1),
    (None, "<system version='1'/>", "has no <gpu>", 1),
    (None, "<system version='1'><cpu numaid='0'/></system>", "has no <gpu>", 1),
    ('version="1"', 'version="3"', "version should be a whole number from 1 to 2", 1),
    ('version="1"', 'version="one"', "got 'one'", 1),
    ("</cpu>", "</pci>", "is no XML: mismatched tag", 12),
    ("</system>", "", "is no XML: no element found", 14),
    ("<gpu dev", "some text <gpu dev", "text stands between elements", 4),
    ('arch="x86_64"', 'arch="&quux;"', "is no XML: undefined entity", 2),
    ('numaid="0"', 'numaid="zero"', "numaid should be a whole number", 2),
    ('numaid="0"', 'numaid="99999999999999999999"', "numaid should be", 2),
    ('familyid="6"', 'familyid="-7"', "familyid should be a whole number from -1", 2),
    ('modelid="85"', 'modelid="8.5"', "modelid should be", 2),
    ("<cpu numaid", '<cpu numaid="0"/>\n<cpu numaid', "two CPUs with numaid 0", 3),
    (
        "<cpu numaid", '<cpu numaid="1" host_hash="0x1"/>\n<cpu host_hash="0x2" numaid',
        "describes 2 hosts", 3,
    ),
    (FIRST, "", "has no busid", 3),
    (FIRST, 'busid=""', "busid should be a bus id, got ''", 3),
    (FIRST, 'busid="zz:00.0"', "busid should be a bus id", 3),
    (FIRST, f'busid="{"0" * 40}"', "busid should be a bus id", 3),
    (FIRST, SECOND, "there are two devices '0000:11:00.0'", 6),
    ('link_width="16"', 'link_width="sixteen"', "link_width should be", 3),
    ('link_width="16"', 'link_width="64"', "link_width should be a whole number from 0 to 32", 3),
    ('link_width="16"', 'link_width="-16"', "link_width should be", 3),
    ("16.0 GT/s PCIe", "fast", "link_speed is 'fast'", 3),
    ("16.0 GT/s PCIe", "17.0 GT/s PCIe", "link_speed is '17.0 GT/s PCIe'", 3),
    ("16.0 GT/s PCIe", "9" * 400, "link_speed is '9999", 3),
    ('sm="80"', 'sm="eighty"', "sm should be a whole number", 4),
    ('sm="80"', 'sm="-1"', "sm should be a whole number from 1", 4),
    ('dev="1"', 'dev="0"', "two GPUs with dev 0", 7),
    ('dev="1"', 'dev="1e3"', "dev should be a whole number", 7),
    (GPU0, GPU0 + '</gpu><gpu dev="5">', "two <gpu> in one <pci>", 4),
    (LINK, LINK.replace('target="0000:11:00.0" ', ""), "has no target", 4),
    (LINK, LINK.replace("0000:11", "nowhere"), "target should be a bus id", 4),
    (LINK, LINK.replace("0000:11", "0000:10"), "leads from a GPU to itself", 4),
    (LINK, LINK.replace('"4"', '"0"'), "count should be a whole number from 1 to 64", 4),
    (LINK, LINK.replace('"4"', '"1000000"'), "count should be", 4),
    (LINK, LINK.replace('"4"', '"2"'), "GPU 1 has 80GB/s to GPU 0, which has 40GB/s back", 7),
    (LINK, "", "which has nothing back", 7),
    (LINK, LINK.replace("11:00", "12:00").replace("0x030200", "0x999999"), "tclass is", 4),
    (GPU0, GPU0 + "<c2c/>", "has no bw", 4),
    (GPU0, GPU0 + '<c2c bw="-5"/>', "bw should be a whole number", 4),
    (GPU0, GPU0 + '<net speed="1"/>', "<net> stands in <gpu>", 4),
    ("<nic>", '<nic><pci busid="1"/>', "<pci> stands in <nic>", 10),
    ('speed="200000"', 'speed="200Gb/s"', "speed should be a whole number", 10),
    ('speed="200000"', 'speed="1000000000"', "speed should be a whole number", 10),
    ("<nic>", '<pcilink target="0000:77:00.0"/><nic>', "there is no other device", 10),
    ("<nic>", "<pcilink/><nic>", "has no target", 10),
)  # fmt: skip

ROCM = """====== ROCm System Management Interface ======
====== Weight between two GPUs ======
       GPU0    GPU1
GPU0   0       15
GPU1   15      0
====== Hops between two GPUs ======
       GPU0    GPU1
GPU0   0       1
GPU1   1       0
====== Link Type between two GPUs ======
       GPU0    GPU1
GPU0   0       XGMI
GPU1   XGMI    0
====== Numa Nodes ======
GPU[0]          : (Topology) Numa Node: 0
GPU[0]          : (Topology) Numa Affinity: 0
GPU[1]          : (Topology) Numa Node: 1
====== End of ROCm SMI Log ======
"""
WEIGHT, HOPS, TYPE = "GPU0   0       15\n", "GPU0   0       1\n", "GPU0   0       XGMI\n"
TITLE = "====== Link Type between two GPUs ======\n"
BANDWIDTH = "====== Bandwidth between two GPUs ======\n       GPU0 GPU1\nGPU0 N/A {}\nGPU1 {} N/A\n"
END = "====== End"
HEADER = "Type between two GPUs ======\n       GPU0    GPU1\n"
NODE = "GPU[0]          : (Topology) Numa Node: 0\n"


def _bandwidth(there: str, back: str) -> str:
    return BANDWIDTH.format(there, back) + END


ROCM_SMI: tuple[Case, ...] = (
    (None, "", "has no table Link Type", 1),
    (None, "\n\n", "has no table Link Type", 1),
    (None, "hello\n", "has no table Link Type", 1),
    (None, "\x00\x01\x02" * 9, "has no table Link Type", 1),
    (None, b"====== Hops ======\n\xff\n", "is not UTF-8", 2),
    (None, "bash: rocm-smi: command not found\n", "has no table", 1),
    (None, "ERROR: GPU[0] : not supported\n", "has no table", 1),
    (None, "<system/>", "has no table", 1),
    (None, '{"a": 1}', "has no table", 1),
    (None, "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n", "has no table", 1),
    (None, ROCM[: ROCM.index("====== Hops")], "has no table Link Type", 1),
    (None, ROCM[: ROCM.index("====== Link")], "has no table Link Type", 1),
    (None, ROCM[ROCM.index("====== Link") :], "has no table Hops", 1),
    (None, TITLE, "has no table Link Type", 1),
    (None, TITLE + "       GPU0\n" + TITLE, "there are two tables 'Link Type between two GPUs'", 3),
    (TITLE, "====== Hops between two GPUs ======\n", "there are two tables 'Hops", 10),
    (HEADER, HEADER.replace("GPU1", "GPU0"), "names a GPU twice", 11),
    (HEADER, HEADER.replace("GPU1", "GPUX"), "should begin with a line GPU0 GPU1", 11),
    (HEADER, HEADER.replace("GPU0    GPU1", "GPU0    GPU1    GPU2"), "has 2 cells", 12),
    (HEADER, HEADER.replace("       GPU0    GPU1\n", ""), "should begin with a line", 11),
    (HEADER, HEADER.replace("GPU1", MANY.strip()[5:]), "more than 256", 11),
    (HEADER, HEADER.replace("GPU0    GPU1", "GPU1    GPU0"), "names other GPUs than the table", 3),
    (TYPE, "", "there is no row for GPU0", 11),
    (HOPS, "", "there is no row for GPU0", 7),
    (WEIGHT, "", "there is no row for GPU0", 3),
    (TYPE, TYPE + TYPE, "'GPU0' is there already", 13),
    (TYPE, TYPE.replace("GPU0", "GPU5"), "'GPU5' is no GPU of the header", 12),
    (TYPE, "GPU0\n", "GPU0 has 0 cells, the header 2 GPUs", 12),
    (TYPE, "GPU0   0\n", "GPU0 has 1 cells", 12),
    (TYPE, TYPE.strip() + " XGMI\n", "GPU0 has 3 cells", 12),
    (TYPE, "------\n", "'------' is no GPU of the header", 12),
    (TYPE, TYPE.replace("XGMI", "NVLINK"), "GPU0 to GPU1 is 'NVLINK'", 12),
    (TYPE, TYPE.replace("XGMI", "xgmi"), "is 'xgmi'", 12),
    (TYPE, TYPE.replace("XGMI", "0"), "GPU0 to GPU1 is '0'", 12),
    (TYPE, "GPU0   XGMI    XGMI\n", "GPU0 to GPU0 is 'XGMI'", 12),
    (TYPE, TYPE.replace("XGMI", "PCIE"), "GPU1 to GPU0 is 'XGMI', but back it is 'PCIE'", 13),
    (TYPE, TYPE.replace("XGMI", "XG\x00MI"), "is 'XG\\x00MI'", 12),
    (TYPE, TYPE.replace("XGMI", "\U0001f600"), "is '\U0001f600'", 12),
    (TYPE, TYPE.replace("XGMI", "X" * 99_999), "is 'XXX", 12),
    (HOPS, HOPS.replace("1", "one"), "should be a whole number, got 'one'", 8),
    (HOPS, HOPS.replace("1", "-1"), "should be a whole number, got '-1'", 8),
    (HOPS, HOPS.replace("1", "1.5"), "should be a whole number", 8),
    (HOPS, HOPS.replace("1", "9" * 40), "should be a whole number", 8),
    (HOPS, HOPS.replace("1", "2"), "GPU1 to GPU0 is '1', but back it is '2'", 9),
    (WEIGHT, WEIGHT.replace("15", "heavy"), "should be a whole number, got 'heavy'", 4),
    (WEIGHT, WEIGHT.replace("15", "\uff11"), "should be a whole number", 4),
    (NODE, "GPU[0]: Numa Node 0\n", "should be a NUMA node", 15),
    (NODE, "nonsense\n", "should be a NUMA node, got 'nonsense'", 15),
    (NODE, NODE + NODE, "GPU0 is there already", 16),
    (NODE, NODE.replace("Node: 0", "Node: left"), "GPU0 has the NUMA node 'left'", 15),
    (NODE, NODE.replace("Node: 0", "Node: 99999999"), "GPU0 has the NUMA node '99999999'", 15),
    (NODE, NODE.replace("GPU[0]", "GPU[-1]"), "should be a NUMA node", 15),
    (END, _bandwidth("fast", "fast"), "should be a range of MB/s or N/A, got 'fast'", 20),
    (END, _bandwidth("9-1", "9-1"), "should be a range of MB/s", 20),
    (END, _bandwidth("1-99999", "1-99999"), "should be a range of MB/s", 20),
    (END, _bandwidth("50000-100000", "50000-50000"), "but back it is '50000-100000'", 21),
)  # fmt: skip

BASES = {"nvidia-smi": (SMI, NVIDIA_SMI), "nccl": (XML, NCCL), "rocm-smi": (ROCM, ROCM_SMI)}


def spoilt(base: str, case: Case) -> bytes:
    """Return the text of a case."""
    old, new, _, _ = case
    if old is None:
        return new if isinstance(new, bytes) else new.encode()
    assert isinstance(new, str)
    assert old in base, old
    return base.replace(old, new, 1).encode()
