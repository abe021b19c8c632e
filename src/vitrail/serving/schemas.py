"""What the routes say about themselves in /openapi.json: bodies, answers and examples."""

import re
from typing import Any

from pydantic import TypeAdapter

from vitrail.serving.operations import Operation

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)

ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "code": {"type": "integer"}},
    "required": ["error", "code"],
}
SENTENCES = {
    400: "The body cannot be read",
    401: "An API key is needed",
    403: "Only for the key of an admin",
    404: "There is no such model, source or file",
    405: "The route has other methods",
    408: "The body came too slowly",
    409: "The model is being loaded",
    413: "The body has too many bytes or images",
    415: "The body is of another kind",
    422: "The request cannot be done, for the reason given",
    429: "Too much waits already: try again after Retry-After seconds",
    503: "A process died, or the model is being loaded: try again",
    504: "No answer before the deadline",
}
BASE64_IMAGES = {
    "type": "array",
    "items": {"type": "string", "format": "byte"},
    "minItems": 1,
    "example": [PIXEL],
}
MODEL_PARAMETER = {
    "name": "model",
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "Name of the model; the first one if left out",
}


def in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {
        code: {
            "description": SENTENCES[code],
            "content": {
                "application/json": {
                    "schema": ERROR,
                    "example": {"error": SENTENCES[code], "code": code},
                }
            },
        }
        for code in codes
    }


def with_example(schema: dict[str, Any], example: Any) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": schema, "example": example}}
    return {200: {"description": "The answer", "content": content}}


def body_of(properties: dict[str, Any], *, single: bool = False) -> dict[str, Any]:
    """Images as a form, as JSON, or one image as the body itself."""
    images = {**BASE64_IMAGES, "maxItems": 1} if single else BASE64_IMAGES
    as_json = {
        "type": "object",
        "properties": {"images": images, **properties},
        "required": ["images"],
        "additionalProperties": False,
    }
    file = {"type": "string", "format": "binary"}
    form = {
        "type": "object",
        "properties": {
            "images": {"type": "array", "items": file, "minItems": 1},
            "options": {"type": "string", "description": "The other fields, as a JSON object"},
        },
        "required": ["images"],
    }
    content = {
        "application/json": {"schema": as_json},
        "multipart/form-data": {"schema": form},
        "image/*": {"schema": file},
    }
    return {"required": True, "content": content}


def image_route(
    summary: str, properties: dict[str, Any], answer: dict[str, Any], example: Any
) -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {
            **with_example(answer, example),
            **errors(400, 401, 404, 408, 413, 415, 422, 429, 503, 504),
        },
        "openapi_extra": {"requestBody": body_of(properties), "parameters": [MODEL_PARAMETER]},
    }


CLASS = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "score": {"type": "number"}},
    "required": ["label", "score"],
}
PROBLEM = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
PREDICTION = {
    "type": "object",
    "properties": {**CLASS["properties"], "top": {"type": "array", "items": CLASS}},  # type: ignore[dict-item]
    "required": ["label", "score", "top"],
}

PREDICT = image_route(
    "Labels of images",
    {"top": {"type": "integer", "minimum": 1, "maximum": 100, "default": 5}},
    {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "predictions": {"type": "array", "items": {"oneOf": [PREDICTION, PROBLEM]}},
        },
        "required": ["model", "predictions"],
    },
    {
        "model": "pets",
        "predictions": [
            {
                "label": "cat",
                "score": 0.93,
                "top": [{"label": "cat", "score": 0.93}, {"label": "dog", "score": 0.07}],
            },
            {"error": "the file ends too early"},
        ],
    },
)
VECTOR = {"type": "array", "items": {"type": "number"}}
EMBED = image_route(
    "What the head reads of images, as vectors",
    {},
    {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "vectors": {"type": "array", "items": {"oneOf": [VECTOR, PROBLEM]}},
        },
        "required": ["model", "vectors"],
    },
    {"model": "pets", "vectors": [[0.12, -1.4, 0.8]]},
)
MATCH = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "score": {"type": "number"}},
    "required": ["name", "score"],
}
SEARCH = image_route(
    "The nearest images of the data that the service was started with",
    {"k": {"type": "integer", "minimum": 1, "maximum": 200, "default": 10}},
    {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "matches": {
                "type": "array",
                "items": {"oneOf": [{"type": "array", "items": MATCH}, PROBLEM]},
            },
        },
        "required": ["model", "matches"],
    },
    {"model": "pets", "matches": [[{"name": "photos/cat.jpg", "score": 0.98}]]},
)
MODEL = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "state": {"type": "string"}},
    "required": ["name", "state"],
}
MODEL_EXAMPLE = {
    "name": "pets",
    "source": "pets",
    "state": "ready",
    "family": "vit",
    "task": "classification",
    "image_size": [224, 224],
    "channels": 3,
    "classes": 2,
    "labels": ["cat", "dog"],
    "multi_label": False,
    "parameters": 21_666_434,
    "features": 384,
    "engine": "openvino",
    "batch_sizes": [1, 4, 8],
    "can_inspect": True,
    "digest": "9f2c…",
}
MODELS: dict[str, Any] = {
    "summary": "The models that are served",
    "responses": {
        **with_example(
            {"type": "object", "properties": {"models": {"type": "array", "items": MODEL}}},
            {"models": [MODEL_EXAMPLE]},
        ),
        **errors(401),
    },
}
NAME_IN_PATH = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
ONE_MODEL: dict[str, Any] = {
    "summary": "One model, with its passport: how to prepare images, and what its config is",
    "responses": {**with_example(MODEL, MODEL_EXAMPLE), **errors(401, 404, 503)},
    "openapi_extra": {"parameters": [NAME_IN_PATH]},
}
LOAD: dict[str, Any] = {
    "summary": "Load a model that was named at the start; needs the key of an admin",
    "responses": {
        **with_example(MODEL, MODEL_EXAMPLE),
        **errors(400, 401, 403, 404, 409, 422, 503),
    },
    "openapi_extra": {
        "parameters": [NAME_IN_PATH],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {"source": {"type": "string"}},
                        "required": ["source"],
                        "additionalProperties": False,
                    },
                    "example": {"source": "pets-v2"},
                }
            },
        },
    },
}
UNLOAD: dict[str, Any] = {
    "summary": "Serve a model no more; needs the key of an admin",
    "responses": {
        **with_example({"type": "object"}, {"unloaded": "pets"}),
        **errors(401, 403, 404, 409),
    },
    "openapi_extra": {
        "parameters": [NAME_IN_PATH],
    },
}


def probe(summary: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {**with_example({"type": "object"}, {}), **errors(404, 503)},
    }


READY = probe("Whether all models are ready")
MODEL_READY = probe("Whether a model is ready")
METRICS: dict[str, Any] = {
    "summary": "Counters and times, as Prometheus reads them",
    "responses": {200: {"description": "The text format of Prometheus", "content": {
        "text/plain": {"schema": {"type": "string"}}}}, **errors(401)},
}  # fmt: skip
MODEL_METADATA: dict[str, Any] = {
    "summary": "Inputs and outputs of a model",
    "responses": {**with_example({"type": "object"}, {}), **errors(401, 404, 503)},
}
TENSOR = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "data": {"type": "array"},
        "parameters": {"type": "object"},
    },
    "required": ["name", "datatype", "shape"],
}
INFER: dict[str, Any] = {
    "summary": "Outputs for tensors, in JSON or binary",
    "responses": {
        200: {
            "description": "Tensors, in JSON or behind it",
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **errors(400, 401, 404, 408, 413, 415, 422, 429, 503, 504),
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "id": {"type": "string"},
                            "inputs": {"type": "array", "items": TENSOR, "minItems": 1},
                            "outputs": {"type": "array", "items": {"type": "object"}},
                        },
                        "required": ["inputs"],
                    }
                }
            },
        }
    },
}


MEDIA = ("application/json", "application/octet-stream", "image/png", "image/jpeg")


def with_path(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """With the parameters that stand in the path of a route."""
    names = re.findall(r"{(\w+)}", path)
    extra = {**schema.get("openapi_extra", {}), "parameters": [in_path(name) for name in names]}
    return {**schema, "openapi_extra": extra}


def operation_schema(operation: Operation) -> dict[str, Any]:
    """The same of an operation, from the record of its options."""
    options = TypeAdapter(operation.options).json_schema()
    properties: dict[str, Any] = inline(options, options.get("$defs", {})).get("properties", {})
    extra: dict[str, Any] = {"parameters": [MODEL_PARAMETER]}
    if operation.needs_image:
        extra["requestBody"] = body_of(properties, single=True)
    else:
        required = options.get("required", [])
        extra["parameters"] += [
            {
                "name": name,
                "in": "path" if f"{{{name}}}" in operation.path else "query",
                "required": name in required,
                "schema": schema,
            }
            for name, schema in properties.items()
        ]
    codes = (400, 401, 404, 408, 413, 415, 422, 429, 503, 504)
    return {
        "summary": operation.summary,
        "responses": {
            200: {
                "description": "JSON, packed arrays (docs/serving.md) or an image",
                "content": {media: {"schema": {}} for media in MEDIA},
            },
            **errors(*codes),
        },
        "openapi_extra": extra,
        "name": operation.name,
    }


def inline(schema: Any, definitions: dict[str, Any]) -> Any:
    """A schema without references to definitions of its own."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return inline(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return {key: inline(one, definitions) for key, one in schema.items() if key != "$defs"}
    if isinstance(schema, list):
        return [inline(one, definitions) for one in schema]
    return schema
