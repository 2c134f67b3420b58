"""Device and number format of a job, the same in every attempt, and the memory that it had or lacked there.

Needs no torch at import, as the child that runs a job.
"""

from __future__ import annotations

import contextlib
import json
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from onward.files import write_whole
from onward.training.spec.request import JobSpec

if TYPE_CHECKING:
    from onward.lm.model import LanguageModel

FILE = "place.json"
"""File with the device and the number format of the first attempt: a later one must not measure again, and
compute in another format."""


def place_job(folder: Path, spec: JobSpec) -> tuple[JobSpec, str]:
    """Returns the spec with a definite device and number format, and why they were chosen: as in an earlier
    attempt in ``folder`` if the device is still there. Raises ConfigError."""
    from onward.lm import paths
    from onward.lm.precision import place

    path, dtype = folder / FILE, spec.dtype
    device, why = place(spec.device, "float32").device, ""
    with contextlib.suppress(OSError, ValueError, KeyError):
        before = json.loads(path.read_bytes())
        if before["device"] == device:
            dtype, why = before["dtype"], "as in the attempt before"
    chosen = place(device, dtype, parameters=paths.parameters(Path(spec.model_folder)))
    spec = JobSpec.model_validate(spec.model_dump() | {"device": chosen.device, "dtype": chosen.dtype})
    write_whole(path, json.dumps({"device": chosen.device, "dtype": chosen.dtype}).encode())
    return spec, why or chosen.why


def peak_gigabytes(policy: LanguageModel) -> float:
    """Returns the peak of the device's memory: that of torch's allocator on a GPU, or of this process."""
    import torch

    if policy.device.type == "cuda":
        return torch.cuda.max_memory_allocated(policy.device) / (1 << 30)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
