"""ONNX Runtime Web, which runs the graph in a browser: from its npm package, never from a CDN.

The package is fetched by npm at export time, in one pinned version whose digest is known, and kept
in Vitrail's cache. `--runtime` names a directory or a .tgz that has its files instead.
"""

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from vitrail.core.errors import UserError
from vitrail.inference.engines.cache import cache_folder
from vitrail.weights.atomic import write_file

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
SECONDS = 300  # that npm may take

# By backend: the script that the page imports, then what that one loads.
FILES = {
    "wasm": (
        "ort.wasm.min.mjs",
        "ort-wasm-simd-threaded.mjs",
        "ort-wasm-simd-threaded.wasm",
    ),
    "webgpu": (
        "ort.webgpu.min.mjs",
        "ort-wasm-simd-threaded.asyncify.mjs",
        "ort-wasm-simd-threaded.asyncify.wasm",
    ),
}
EVERY = tuple(name for names in FILES.values() for name in names)
LICENCE = "LICENSE.txt"
MIT = """\
ONNX Runtime Web {version}, from the npm package {package}

MIT License

Copyright (c) Microsoft Corporation

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""  # noqa: E501


def check_runtime(given: Path | None) -> None:
    """Refuse, before any work, where there is no runtime to be had; nothing is fetched."""
    if given is not None:
        if not given.exists():
            raise UserError(f"{given}: no such directory or .tgz of {PACKAGE}")
    elif not archive_path().is_file() and shutil.which("npm") is None:
        raise UserError(
            f"ONNX Runtime Web is fetched by npm, which is not installed: install npm, or give its "
            f"files with runtime=DIR (the npm package {PACKAGE} {VERSION}, or its .tgz)"
        )


def copy_runtime(given: Path | None, out: Path) -> str:
    """The files that a page needs, and their licence, into a new directory; gives the version."""
    out.mkdir()
    if given is not None and given.is_dir():
        return copy_from_directory(given, out)
    archive = given or fetch_archive()
    with TemporaryDirectory(prefix="vitrail-") as place:
        return copy_from_directory(unpack(archive, Path(place)), out)


def copy_from_directory(given: Path, out: Path) -> str:
    """From an unpacked package, or from its dist directory."""
    dist = given / "dist" if (given / "dist").is_dir() else given
    missing = [name for name in EVERY if not (dist / name).is_file()]
    if missing:
        raise UserError(
            f"{given}: must have the files of {PACKAGE} {VERSION}, but {missing[0]} is missing"
        )
    for name in EVERY:
        shutil.copyfile(dist / name, out / name)
    version = package_version(dist.parent / "package.json") or package_version(
        dist / "package.json"
    )
    licence = next((file for file in dist.parent.glob("LICENSE*") if file.is_file()), None)
    if licence is not None:
        shutil.copyfile(licence, out / LICENCE)
    else:
        text = MIT.format(package=PACKAGE, version=version or "")
        (out / LICENCE).write_text(text, encoding="utf-8")
    return f"{PACKAGE} {version}".strip()


def package_version(file: Path) -> str:
    """The version in package.json, or nothing if it is of another package."""
    try:
        facts = json.loads(file.read_bytes())
        return str(facts["version"]) if facts["name"] == PACKAGE else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def unpack(archive: Path, place: Path) -> Path:
    """The files that are needed of an npm package, below `place`."""
    wanted = {f"package/dist/{name}" for name in EVERY} | {"package/package.json"}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.isfile() and (
                    member.name in wanted or member.name.startswith("package/LICENSE")
                ):
                    tar.extract(member, place, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{archive}: cannot be read as an npm package: {error}") from None
    return place / "package"


def archive_path() -> Path:
    """Where the fetched package is kept."""
    return cache_folder().with_name("web") / f"{PACKAGE}-{VERSION}.tgz"


def fetch_archive() -> Path:
    """The pinned package, from the cache or by npm; its digest is checked each time."""
    kept = archive_path()
    if kept.is_file() and digest(kept) == SHA512:
        return kept
    with TemporaryDirectory(prefix="vitrail-") as place:
        fetched = npm_pack(Path(place))
        if (found := digest(fetched)) != SHA512:
            raise UserError(
                f"npm: {PACKAGE} {VERSION} must have the SHA-512 {SHA512[:12]}…, got "
                f"{found[:12]}…: it was not used"
            )

        def fill(draft: Path) -> None:
            shutil.copyfile(fetched, draft)

        write_file(kept, fill, overwrite=True)
    return kept


def npm_pack(place: Path) -> Path:
    """`npm pack`, which downloads a package without installing it or running its scripts."""
    npm = shutil.which("npm")
    if npm is None:
        check_runtime(None)
        raise UserError(f"{archive_path()}: is damaged, and npm is not installed to fetch it again")
    line = [npm, "pack", f"{PACKAGE}@{VERSION}", "--ignore-scripts", "--silent"]
    try:
        subprocess.run(line, cwd=place, check=True, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.CalledProcessError as error:
        lines = [text for text in (error.stderr or error.stdout).splitlines() if text.strip()]
        reason = lines[0].strip() if lines else f"it exited with {error.returncode}"
        raise UserError(f"npm cannot fetch {PACKAGE} {VERSION}: {reason}: {INSTEAD}") from None
    except subprocess.TimeoutExpired:
        raise UserError(
            f"npm did not fetch {PACKAGE} {VERSION} within {SECONDS} s: {INSTEAD}"
        ) from None
    found = list(place.glob("*.tgz"))
    if len(found) != 1:
        raise UserError(f"npm must write one .tgz of {PACKAGE}, got {len(found)}: {INSTEAD}")
    return found[0]


INSTEAD = "give the package's directory or .tgz with runtime="


def digest(file: Path) -> str:
    """As npm writes it."""
    with file.open("rb") as stream:
        return base64.b64encode(hashlib.file_digest(stream, "sha512").digest()).decode()
