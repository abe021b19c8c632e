"""`vitrail.explain` of a model behind an address: maps come from the service, overlays and pages
are made here. Verdicts and the attention of every head need the weights, so there are none."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.core.errors import UserError
from vitrail.data.images import BadImage
from vitrail.data.paths import is_address
from vitrail.data.reader import Item, name_of, read_pixels
from vitrail.explanation.auto_method import MethodChoice
from vitrail.explanation.methods import AUTO, check_names
from vitrail.inference.client import Client
from vitrail.inference.remote_model import RemoteModel
from vitrail.inference.service_records import ExplainedImage
from vitrail.tasks.explain_files import encode_image
from vitrail.tasks.explain_work import Work
from vitrail.tasks.explanation import Explanation, Map, visible_part

SERVED = ("layer", "head", "query")  # options that a service takes
UNTESTED = "maps of a service are not tested: a verdict needs the checkpoint"


def select_remote(names: Any, options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each method with its options; the service checks them against the model."""
    given = {name: value for name, value in options.items() if value is not None}
    if others := [name for name in given if name not in SERVED]:
        raise UserError(f"{others[0]} is not an option of a service: use the checkpoint")
    return {name: dict(given) for name in check_names(names)}


@dataclass
class RemoteWork(Work):
    """The same as for a model in memory, but for what computes the maps."""

    @property
    def client(self) -> Client:
        assert isinstance(self.model, RemoteModel)
        return self.model.client

    def explain_item(self, item: Item) -> Explanation | None:
        run, how, name = self.run, self.run.preprocessing, name_of(item)
        try:
            visible = visible_part(read_pixels(item, channels=len(how.mean)), how)
        except BadImage as problem:
            run.problems[name] = problem.reason
            return None
        maps, found = dict[str, Map](), None
        for method, options in list(run.methods.items()):
            [found] = self.client.explain([item], method=method, target=self.target, **options)
            if found.problem is not None or found.map is None or found.method is None:
                run.problems[name] = found.problem or "the service gave no map"
                return None
            self.note_choice(method, found)
            maps[found.method] = found.map
        assert found is not None, "there is a method"
        is_file = isinstance(item, str) and not is_address(item)
        explanation = Explanation(
            name=name,
            **self.prediction(item, found),
            maps=maps,
            run=run,
            source=str(item) if is_file else encode_image(visible),
        )
        return self.write(explanation, visible, None)

    def note_choice(self, method: str, found: ExplainedImage) -> None:
        """What auto means, which the first response says."""
        run = self.run
        if method == AUTO and found.method is not None:
            run.auto = MethodChoice(found.method, found.reason or "the service chose it")
            run.methods = {
                found.method if name == AUTO else name: options
                for name, options in run.methods.items()
            }

    def prediction(self, item: Item, found: ExplainedImage) -> dict[str, Any]:
        """The predicted class, which is the explained one unless another was chosen."""
        if found.target is None:
            return dict.fromkeys(("label", "score", "target", "target_score"))
        target = {"target": found.target.label, "target_score": found.target.score}
        if self.target is None:
            return {"label": found.target.label, "score": found.target.score, **target}
        [predicted] = self.client.predict([item], top=1)
        return {"label": predicted.label, "score": predicted.score, **target}
