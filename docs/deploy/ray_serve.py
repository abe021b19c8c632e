"""A Vitrail model on Ray Serve: replicas on a cluster, each with a batcher of Ray's own.

pip install 'vitrail[fast]' 'ray[serve]'
VITRAIL_MODEL=runs/pets/best serve run ray_serve:app        # http://127.0.0.1:8000/
curl --data-binary @cat.jpg http://127.0.0.1:8000/
"""

import os
from typing import Any

from ray import serve
from starlette.requests import Request

BATCH = 16
MAX_BYTES = 16 * 2**20


@serve.deployment(
    num_replicas=2,
    ray_actor_options={"num_cpus": 2},
    max_ongoing_requests=4 * BATCH,
    max_queued_requests=16 * BATCH,  # more are refused with 503
    graceful_shutdown_timeout_s=45,
)
class Classifier:
    """Reads the bytes of an image from the body of a request, and responds with its labels."""

    def __init__(self, source: str, top: int = 5) -> None:
        import vitrail

        self.model, self.top = vitrail.load(source, device="auto"), top

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=0.005)
    async def predict(self, images: list[bytes]) -> list[dict[str, Any]]:
        """One call for the images that arrived together, in a thread of its own."""
        import asyncio

        import vitrail

        found = await asyncio.to_thread(
            vitrail.predict, self.model, images, top=self.top, batch_size=BATCH
        )
        return [one.facts() for one in found]

    async def __call__(self, request: Request) -> dict[str, Any]:
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_BYTES:
                return {"problem": f"an image may have {MAX_BYTES:,} bytes"}
        return await self.predict(bytes(data))

    def check_health(self) -> None:
        """Ray restarts a replica that raises here."""
        assert next(self.model.parameters()) is not None


app = Classifier.bind(os.environ.get("VITRAIL_MODEL", "model"))
