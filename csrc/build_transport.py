"""Declares `insync.transport._native` to cffi (API mode, stable ABI); setup.py compiles it."""

import re
from pathlib import Path

import cffi

HERE = Path(__file__).resolve().parent
SOURCES = ("isr_crc32c.c", "isr_poll.c", "isr_tx.c")
HEADERS = ("isr_crc32c.h", "isr_poll.h", "isr_tx.h")


def declarations() -> str:
    """The headers as cffi reads them: without preprocessor lines, whose constants Python does not need."""
    text = "\n".join((HERE / name).read_text() for name in HEADERS)
    return re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


ffi = cffi.FFI()
ffi.cdef(declarations())
ffi.set_source(
    "insync.transport._native",
    "\n".join(f'#include "{name}"' for name in HEADERS),
    sources=[f"csrc/{name}" for name in SOURCES],
    depends=[f"csrc/{name}" for name in HEADERS],
    include_dirs=["csrc"],
    extra_compile_args=["-O2", "-std=gnu11", "-Wall", "-Wextra"],
    py_limited_api=True,
)
