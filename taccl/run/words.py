"""Memory as machine code sees it: words that processes share, blocks of bytes, the clock, sleep.

Addresses are plain integers. Counters that two processes share are read with acquire and written
with release order: what was written before the counter was raised is seen by whoever reads it
raised (C11, 7.17.3). Everything here is for compiled code alone.
"""

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import for_range, raw_memmove
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_HALF_WORD = ir.IntType(32)
_SYSCALLS = {"x86_64": 202, "aarch64": 98}
"""Number of the system call futex (``asm/unistd.h``)."""

_WAIT, _WAKE = 0, 1
"""``FUTEX_WAIT`` and ``FUTEX_WAKE``, not private: processes share the word (``linux/futex.h``)."""


@intrinsic
def load(typing, address):
    """Return the word at an `address`, with acquire order."""

    def make(context, builder, signature, values):
        pointer = builder.inttoptr(values[0], _WORD.as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), make


@intrinsic
def store(typing, address, value):
    """Write a `value` to the word at an `address`, with release order."""

    def make(context, builder, signature, values):
        pointer = builder.inttoptr(values[0], _WORD.as_pointer())
        builder.store_atomic(values[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), make


@intrinsic
def add_to(typing, address, value):
    """Add a `value` to the word at an `address` at once, in one order for all; return the old."""

    def make(context, builder, signature, values):
        pointer = builder.inttoptr(values[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", pointer, values[1], "seq_cst")

    return types.int64(types.int64, types.int64), make


@intrinsic
def fence(typing):
    """Let no read after this go before a write before it."""

    def make(context, builder, signature, values):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), make


@intrinsic
def move(typing, target, source, size):
    """Copy `size` bytes from an address to an address; the two may overlap."""

    def make(context, builder, signature, values):
        byte = ir.IntType(8).as_pointer()
        to, of = (builder.inttoptr(value, byte) for value in values[:2])
        raw_memmove(builder, to, of, values[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), make


def _adder(store_type, sum_type, load_number, store_number):
    """Return an intrinsic that adds two arrays of so many numbers, given by their addresses."""

    @intrinsic
    def add_arrays(typing, target, one, other, count):
        def make(context, builder, signature, values):
            pointer = store_type.as_pointer()
            to, left, right = (builder.inttoptr(value, pointer) for value in values[:3])
            with for_range(builder, values[3]) as loop:
                terms = [
                    load_number(builder, builder.load(builder.gep(place, [loop.index])))
                    for place in (left, right)
                ]
                whole = isinstance(sum_type, ir.IntType)
                total = (builder.add if whole else builder.fadd)(*terms)
                builder.store(store_number(builder, total), builder.gep(to, [loop.index]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64), make

    return add_arrays


def _same(builder, value):
    return value


def _from_half(builder, bits):
    return builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType())


def _to_half(builder, value):
    return builder.bitcast(builder.fptrunc(value, ir.HalfType()), _SHORT)


def _from_bfloat16(builder, bits):
    wide = builder.shl(builder.zext(bits, _HALF_WORD), _HALF_WORD(16))
    return builder.bitcast(wide, ir.FloatType())


def _to_bfloat16(builder, value):
    bits = builder.bitcast(value, _HALF_WORD)
    high = builder.lshr(bits, _HALF_WORD(16))
    odd = builder.add(builder.and_(high, _HALF_WORD(1)), _HALF_WORD(0x7FFF))
    nearest = builder.lshr(builder.add(bits, odd), _HALF_WORD(16))
    quiet = builder.or_(high, _HALF_WORD(64))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, quiet, nearest), _SHORT)


_SHORT = ir.IntType(16)
add_int32 = _adder(_HALF_WORD, _HALF_WORD, _same, _same)
add_int64 = _adder(_WORD, _WORD, _same, _same)
add_float32 = _adder(ir.FloatType(), ir.FloatType(), _same, _same)
add_float64 = _adder(ir.DoubleType(), ir.DoubleType(), _same, _same)
add_float16 = _adder(_SHORT, ir.FloatType(), _from_half, _to_half)
add_bfloat16 = _adder(_SHORT, ir.FloatType(), _from_bfloat16, _to_bfloat16)


def _declared(builder, name, result, *arguments, var_arg=False):
    """Return a function of the C library."""
    kind = ir.FunctionType(result, arguments, var_arg=var_arg)
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, kind, name)


@intrinsic
def nanoseconds(typing):
    """Return the monotonic clock, which all processes of a machine share."""

    def make(context, builder, signature, values):
        called = _declared(
            builder, "clock_gettime", _HALF_WORD, _HALF_WORD, _WORD.as_pointer()
        )  # fmt: skip
        place = builder.alloca(_WORD, 2)
        builder.call(called, [_HALF_WORD(1), place])
        seconds = builder.load(place)
        rest = builder.load(builder.gep(place, [_HALF_WORD(1)]))
        return builder.add(builder.mul(seconds, _WORD(1_000_000_000)), rest)

    return types.int64(), make


@intrinsic
def give_way(typing):
    """Let another process have the processor."""

    def make(context, builder, signature, values):
        builder.call(_declared(builder, "sched_yield", _HALF_WORD), [])
        return context.get_dummy_value()

    return types.void(), make


def _futex(builder, address, operation, value, timeout):
    """Call futex on the lower half of the word at an address."""
    from platform import machine

    null = ir.Constant(_WORD.as_pointer(), None)
    called = _declared(builder, "syscall", _WORD, _WORD, var_arg=True)
    return builder.call(called, [
        _WORD(_SYSCALLS[machine()]), builder.inttoptr(address, _WORD.as_pointer()),
        _WORD(operation), value, timeout or null, null, _WORD(0),
    ])  # fmt: skip


@intrinsic
def sleep_while(typing, address, value, most):
    """Sleep while the lower half of a word is `value`, for at most so many nanoseconds."""

    def make(context, builder, signature, values):
        time = builder.alloca(_WORD, 2)
        billion = _WORD(1_000_000_000)
        builder.store(builder.sdiv(values[2], billion), time)
        builder.store(builder.srem(values[2], billion), builder.gep(time, [_HALF_WORD(1)]))
        _futex(builder, values[0], _WAIT, values[1], time)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), make


@intrinsic
def wake(typing, address):
    """Wake whoever sleeps at a word."""

    def make(context, builder, signature, values):
        _futex(builder, values[0], _WAKE, _WORD(1 << 30), None)
        return context.get_dummy_value()

    return types.void(types.int64), make
