"""Declares `insync.storage._native` to cffi (API mode, stable ABI); setup.py compiles it."""

import re
from pathlib import Path

import cffi

HERE = Path(__file__).resolve().parent
SOURCES = (
    "isr_arrow.c",
    "isr_batch.c",
    "isr_clean.c",
    "isr_crc32c.c",
    "isr_device.c",
    "isr_file.c",
    "isr_handover.c",
    "isr_log.c",
)
HEADERS = (
    "isr_crc32c.h",
    "isr_batch.h",
    "isr_arrow.h",
    "isr_clean.h",
    "isr_device.h",
    "isr_file.h",
    "isr_handover.h",
    "isr_log.h",
)
PRIVATE = ("isr_header.h", "isr_record.h", "isr_write.h")


def declarations() -> str:
    """The headers as cffi reads them: without preprocessor lines, whose constants Python does not need."""
    text = "\n".join((HERE / name).read_text() for name in HEADERS)
    return re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


ffi = cffi.FFI()
ffi.cdef(declarations())
ffi.set_source(
    "insync.storage._native",
    "\n".join(f'#include "{name}"' for name in HEADERS),
    sources=[f"csrc/{name}" for name in SOURCES],
    depends=[f"csrc/{name}" for name in (*HEADERS, *PRIVATE)],
    include_dirs=["csrc"],
    extra_compile_args=["-O2", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra"],
    py_limited_api=True,
)
