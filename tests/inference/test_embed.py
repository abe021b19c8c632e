"""A directory of embeddings: what is in it, how it is gone on with, and what is near what."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from sklearn.metrics.pairwise import cosine_similarity

from tests.inference.photos import small_model, write_photos
from vitrail import UserError
from vitrail.inference import embed as embedding
from vitrail.inference.arrow import EmbeddingTable, Precision
from vitrail.inference.embed import embed_local, embed_one, embedding_shape
from vitrail.inference.engine import Job, OutputKind, compute_outputs
from vitrail.inference.nearest import find_duplicates, find_nearest
from vitrail.inference.parts import CHECKPOINT, STATE, Manifest, finished_parts, open_parts
from vitrail.models.model import Model
from vitrail.weights.digest import digest_of

ROWS = EmbeddingTable("float32")


def manifest(model: Model, job: Job, precision: Precision = "float32") -> Manifest:
    return Manifest(
        model="small",
        digest=digest_of(model),
        output=job.output,
        shape=embedding_shape(model, job),
        precision=precision,
        exact=job.exact,
        batch_size=job.batch_size,
    )


def rows_of(folder: Path) -> dict[str, Any]:
    return {row["id"]: row for row in pq.read_table(folder).to_pylist()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("output", "shape"), [("pooled", (32,)), ("tokens", (25, 32))])
@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_every_picture_has_a_row(
    output: OutputKind, shape: tuple[int, ...], precision: Precision, tmp_path: Path
) -> None:
    names = write_photos(tmp_path / "photos", 11, broken=(3,))
    model, job = small_model(), Job(output=output)
    assert embedding_shape(model, job) == shape
    out = tmp_path / "out"
    open_parts(out, manifest(model, job, precision))
    done = embed_local(model, [*names, names[0]], out, job, EmbeddingTable(precision))
    assert (done.before, done.done, done.broken) == (0, 11, 1)
    table = pq.read_table(out)  # as any reader of Parquet would
    assert table.schema.field("embedding").type.value_type == getattr(pa, precision)()
    assert table["id"].to_pylist() == names
    for row, found in zip(table.to_pylist(), compute_outputs(model, names, job), strict=True):
        if found.values is None:
            assert row["embedding"] is None
            assert row["problem"] == found.problem
        else:
            assert row["problem"] is None
            written = np.array(row["embedding"], dtype=precision).reshape(shape)
            assert np.array_equal(written, found.values.astype(precision))


def test_a_run_that_stops_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = write_photos(tmp_path / "photos", 40, broken=(1,))
    model, job, out = small_model(), Job(output="pooled"), tmp_path / "out"
    monkeypatch.setattr(embedding, "ROWS", 8)
    open_parts(tmp_path / "once", manifest(model, job))
    embed_local(model, names, tmp_path / "once", job, ROWS)

    def stop(progress: embedding.EmbedProgress) -> None:
        if progress.done == 21:
            raise KeyboardInterrupt

    open_parts(out, manifest(model, job))
    with pytest.raises(KeyboardInterrupt):
        embed_local(model, names, out, job, ROWS, on_progress=stop)
    assert [pq.read_metadata(part).num_rows for part in finished_parts(out)] == [8, 8, 5]
    computed: list[str] = []

    def counting(model: Model, wanted: Any, *rest: Any, **more: Any) -> Any:
        def seen() -> Any:
            for name in wanted:
                computed.append(name)
                yield name

        return compute_outputs(model, seen(), *rest, **more)

    monkeypatch.setattr(embedding, "compute_outputs", counting)
    open_parts(out, manifest(model, job))
    done = embed_local(model, names, out, job, ROWS)
    assert (done.before, done.done, done.broken) == (20, 20, 1)
    assert computed == [names[1], *names[21:]], "what could not be read is tried again"
    assert pq.read_table(out)["id"].to_pylist() == names
    assert rows_of(out) == rows_of(tmp_path / "once")


def test_what_can_be_read_after_all_has_one_row(tmp_path: Path) -> None:
    names = write_photos(tmp_path / "photos", 5, broken=(1, 3))
    model, job, out = small_model(), Job(output="pooled"), tmp_path / "out"
    open_parts(out, manifest(model, job))
    embed_local(model, names, out, job, ROWS)
    write_photos(tmp_path / "photos", 5, broken=(3,))
    done = embed_local(model, names, out, job, ROWS)
    assert (done.before, done.done, done.broken) == (3, 2, 1)
    readable = [name for name, row in rows_of(out).items() if row["problem"] is None]
    assert sorted(readable) == [names[place] for place in (0, 1, 2, 4)]
    assert sorted(pq.read_table(out)["id"].to_pylist()) == names


def test_parts_that_call_a_problem_a_reason_are_gone_on_with(tmp_path: Path) -> None:
    """As earlier versions wrote them."""
    names, out = write_photos(tmp_path / "photos", 6, broken=(1,)), tmp_path / "out"
    job, rows = Job(output="pooled", batch_size=2), EmbeddingTable("float32")
    out.mkdir()
    embed_local(small_model(), names[:4], out, job, rows)
    (part,) = out.glob("*.parquet")
    table = pq.read_table(part)
    pq.write_table(table.rename_columns(["id", "embedding", "reason"]), part)
    assert embed_local(small_model(), names, out, job, rows).before == 3
    found = rows_of(out)
    assert list(found) == names
    assert [name for name, row in found.items() if row["problem"] is not None] == [names[1]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("harm", ["cut", "empty", "foreign"])
def test_a_damaged_part_is_named(harm: str, tmp_path: Path) -> None:
    names = write_photos(tmp_path / "photos", 5)
    model, job, out = small_model(), Job(output="pooled"), tmp_path / "out"
    open_parts(out, manifest(model, job))
    embed_local(model, names, out, job, ROWS)
    (part,) = finished_parts(out)
    if harm == "foreign":
        pq.write_table(pa.table({"x": [1]}), part)
    else:
        part.write_bytes(part.read_bytes()[: 100 if harm == "cut" else 0])
    for act in (
        lambda: embed_local(model, names, out, job, ROWS),
        lambda: find_nearest(out, np.ones(32), k=1),
        lambda: find_duplicates(out, threshold=0.9),
    ):
        with pytest.raises(UserError, match=r"part-000000\.parquet: is damaged, or no part"):
            act()
    part.unlink()
    assert embed_local(model, names, out, job, ROWS).done == 5


def test_what_ray_left_unfinished_is_not_counted_and_is_swept(tmp_path: Path) -> None:
    names = write_photos(tmp_path / "photos", 4)
    model, job, out = small_model(), Job(output="pooled"), tmp_path / "out"
    open_parts(out, manifest(model, job))
    state = out / STATE / CHECKPOINT
    state.mkdir(parents=True)
    part = ROWS(list(compute_outputs(model, names[:1], job)))
    pq.write_table(part, out / "run_000000-0.parquet")
    pq.write_table(part.select(["id"]), state / "run_000000.parquet")
    (out / "run_000001-0.parquet").write_bytes(b"half a file")
    (state / "run_000001.pending.parquet").write_bytes(b"")
    assert [part.name for part in finished_parts(out)] == ["run_000000-0.parquet"]
    done = embed_local(model, names, out, job, ROWS)
    assert (done.before, done.done) == (1, 3)
    assert sorted(pq.read_table(out)["id"].to_pylist()) == names
    assert not (out / "run_000001-0.parquet").exists()


def test_another_model_or_another_setting_is_refused(tmp_path: Path) -> None:
    model, job = small_model(), Job(output="pooled")
    open_parts(tmp_path / "out", manifest(model, job))
    open_parts(tmp_path / "out", manifest(small_model(), job))
    with pytest.raises(UserError, match="of another model"):
        open_parts(tmp_path / "out", manifest(small_model(seed=1), job))
    with pytest.raises(UserError, match="precision float32, not float16"):
        open_parts(tmp_path / "out", manifest(model, job, "float16"))
    with pytest.raises(UserError, match="output pooled, not tokens"):
        open_parts(tmp_path / "out", manifest(model, Job(output="tokens")))
    with pytest.raises(UserError, match="exact True, not False"):
        open_parts(tmp_path / "out", manifest(model, Job(output="pooled", exact=False)))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(UserError, match="holds something else"):
        open_parts(tmp_path / "full", manifest(model, job))


def test_nearest_and_duplicates_equal_scikit_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write_photos(tmp_path / "photos", 30, broken=(7,))
    twin = tmp_path / "photos" / "twin.jpg"
    twin.write_bytes(Path(names[12]).read_bytes())
    names.append(str(twin))
    model, job, out = small_model(), Job(output="pooled"), tmp_path / "out"
    monkeypatch.setattr(embedding, "ROWS", 7)  # several blocks
    made = manifest(model, job)
    open_parts(out, made)
    embed_local(model, names, out, job, ROWS)
    good = {
        one.name: one.values for one in compute_outputs(model, names, job) if one.values is not None
    }
    ids, vectors = list(good), np.stack(list(good.values()))
    cosines = cosine_similarity(vectors)

    query = embed_one(model, names[12], made, where="out")
    found = find_nearest(out, query, k=6)
    near = cosines[ids.index(names[12])]
    order = np.argsort(-near)[:6]
    assert {match.id for match in found[:2]} == {names[12], str(twin)}
    assert [match.id for match in found[2:]] == [ids[place] for place in order[2:]]
    assert [match.cosine for match in found] == pytest.approx(near[order], abs=1e-5)

    corner = np.triu_indices(len(ids), 1)
    values = np.sort(cosines[corner])[-60:-5]
    widest = int(np.diff(values).argmax())  # where rounding decides nothing
    threshold = float(values[widest : widest + 2].mean())
    pairs = {
        (pair.one, pair.other): pair.cosine
        for pair in find_duplicates(out, threshold=threshold).pairs
    }
    assert pairs == pytest.approx(
        {
            (ids[one], ids[other]): cosines[one, other]
            for one, other in zip(*corner, strict=True)
            if cosines[one, other] >= threshold
        },
        abs=1e-5,
    )
    assert pairs[names[12], str(twin)] == pytest.approx(1, abs=1e-5)
    with pytest.raises(UserError, match="threshold must be at least -1 and at most 1"):
        find_duplicates(out, threshold=2)
    with pytest.raises(UserError, match="of another model"):
        embed_one(small_model(seed=1), names[0], made, where="out")
