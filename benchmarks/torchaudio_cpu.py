"""torchaudio's transducer loss on a CPU-only torch, for comparison: `load()` returns the torchaudio module.

PyPI's torchaudio 2.11.0 is a CUDA build. Its extension names three CUDA libraries that a CPU torch does not have, but
its CPU kernels call nothing in them, so three libraries that only define the symbols are enough to load it:

    pip install --no-deps torchaudio==2.11.0
    rnnt_loss = load().functional.rnnt_loss    # float32 logits; int32 targets and lengths; blank=-1 by default
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType

NO_DEVICE = 100  # cudaErrorNoDevice

# soname -> C source. Whatever would mean that a CUDA path was taken aborts.
STUBS = {
    "libcudart.so.13": f"""
        static void *handle[4];
        void **__cudaRegisterFatBinary(void *binary) {{ return handle; }}
        void __cudaRegisterFatBinaryEnd(void **binary) {{}}
        void __cudaUnregisterFatBinary(void **binary) {{}}
        void __cudaRegisterFunction(void) {{}}
        void __cudaRegisterVar(void) {{}}
        int __cudaGetKernel(void) {{ return {NO_DEVICE}; }}
        int __cudaLaunchKernel(void) {{ return {NO_DEVICE}; }}
        int __cudaPopCallConfiguration(void) {{ return {NO_DEVICE}; }}
        int __cudaPushCallConfiguration(void) {{ return {NO_DEVICE}; }}
        int cudaGetLastError(void) {{ return {NO_DEVICE}; }}
        int cudaMemcpyAsync(void) {{ return {NO_DEVICE}; }}
        int cudaMemset(void) {{ return {NO_DEVICE}; }}
        int cudaSetDevice(void) {{ return {NO_DEVICE}; }}
        int cudaGetDeviceCount(int *count) {{ *count = 0; return 0; }}
    """,
    "libc10_cuda.so": """
        void abort(void);
        void torch_c10_cuda_check_msg(void) { abort(); }
        void torch_c10_cuda_free_error_msg(void) { abort(); }
    """,
    "libtorch_cuda.so": """
        void abort(void);
        void aoti_torch_create_cuda_guard(void) { abort(); }
        void aoti_torch_get_current_cuda_stream(void) { abort(); }
        void torch_cuda_stream_synchronize(void) { abort(); }
        void torch_get_cuda_stream_from_pool(void) { abort(); }
        void torch_set_current_cuda_stream(void) { abort(); }
    """,
}


def cache_folder() -> Path:
    """The user's cache, in a folder named after the stubs' source, so that a changed source is built anew."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "rnnt-loss" / ("torchaudio-stubs-" + hashlib.sha256(repr(STUBS).encode()).hexdigest()[:12])


def build_stub(soname: str, folder: Path) -> None:
    """Compiles aside and renames into place: of two processes at once, either may win, and none loads half a file."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source, symbols, library = (Path(scratch, "stub" + suffix) for suffix in (".c", ".map", ".so"))
        source.write_text(STUBS[soname])
        symbols.write_text(f"{soname} {{ global: *; }};\n")  # the real cudart versions its symbols by its soname
        versioned = [f"-Wl,--version-script={symbols}"] if soname.startswith("libcudart") else []
        command = ["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{soname}", *versioned, str(source), "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        os.replace(library, folder / soname)


def load() -> ModuleType:
    """Imports torchaudio, with the stubs only where it does not import without. Raises ImportError if it cannot."""
    try:
        return importlib.import_module("torchaudio")
    except OSError:  # a CUDA build beside a CPU torch; a missing torchaudio is an ImportError and goes to the caller
        pass
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for soname in STUBS:
            if not (folder / soname).exists():
                build_stub(soname, folder)
            ctypes.CDLL(str(folder / soname), mode=ctypes.RTLD_GLOBAL)
        return importlib.import_module("torchaudio")
    except FileNotFoundError as error:
        raise ImportError(f"torchaudio's stub libraries need a C compiler named cc: {error}") from error
    except subprocess.CalledProcessError as error:
        raise ImportError(f"torchaudio's stub libraries did not compile: {error.stderr}") from error
    except OSError as error:
        raise ImportError(f"torchaudio does not load, wanted 2.11.0 beside torch >= 2.11: {error}") from error
