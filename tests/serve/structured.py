"""A small validator of JSON Schema, for what the server supports, and schemas to hold answers to. By hand, so that the tests' Python needs no more."""
import json
import re

FORMATS = {"date": r"\d{4}-\d\d-\d\d", "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
           "time": r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", "date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"}


def is_type(value, name):
    if name in ("integer", "number"):
        return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and (name == "number" or value.is_integer())))
    return isinstance(value, {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}[name])


def equal(a, b):
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def is_valid(value, schema, root=None):
    root = schema if root is None else root
    if "$ref" in schema:
        target = root
        for step in schema["$ref"].split("/")[1:]:
            target = target[step]
        return is_valid(value, target, root)
    if "anyOf" in schema and not any(is_valid(value, part, root) for part in schema["anyOf"]):
        return False
    if "const" in schema and not equal(value, schema["const"]) or "enum" in schema and not any(equal(value, one) for one in schema["enum"]):
        return False
    kinds = schema.get("type")
    if kinds is not None and not any(is_type(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return False
    if isinstance(value, dict):
        properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        if any(name not in value for name in schema.get("required", [])):
            return False
        for name, part in value.items():
            if not (is_valid(part, properties[name], root) if name in properties else more if isinstance(more, bool) else is_valid(part, more, root)):
                return False
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1 << 30):
            return False
        rest = schema.get("items", True)
        for i, item in enumerate(value):
            if not (is_valid(item, first[i], root) if i < len(first) else rest if isinstance(rest, bool) else is_valid(item, rest, root)):
                return False
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1 << 30):
            return False
        if "pattern" in schema and not re.search(schema["pattern"], value):
            return False
        if "format" in schema and not re.fullmatch(FORMATS[schema["format"]], value):
            return False
    if is_type(value, "number"):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            return False
        if not schema.get("exclusiveMinimum", value - 1) < value < schema.get("exclusiveMaximum", value + 1):
            return False
    return True


TEXT = {"type": "string", "maxLength": 8}
SCHEMAS = {
    "person": {"type": "object", "properties": {"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "mail": {"type": ["string", "null"], "maxLength": 5}},
               "required": ["name", "age", "mail"], "additionalProperties": False},
    "optional": {"type": "object", "properties": {"a": {"type": "boolean"}, "date_time": {"type": "null"}, "c": {"enum": ["x", "y", 3]}, "when": {"type": "string", "format": "date-time"}},
                 "required": ["when"]},
    "list": {"type": "array", "items": {"anyOf": [{"type": "integer", "exclusiveMinimum": -20, "maximum": 7}, {"type": "boolean"}]}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [{"const": "a\"\\\n\u00e9"}, {"type": "string", "format": "uuid"}], "items": False},
    "tree": {"$ref": "#/$defs/node_1", "$defs": {"node_1": {"type": "object", "properties": {"v": {"enum": [1, 2]}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node_1"}]}}, "required": ["v", "next"]}}},
    "pattern": {"type": "string", "pattern": r"^(\d{3}-[a-f]+|\w\.x?é{2})[^a-z].$"},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 6},
    "names": {"type": "object", "properties": {"root": {"type": "null"}, "a b": {"type": "null"}, "a-b": {"type": "boolean"}, "string": {"const": 1}, "é\"\\": {"type": "null"}},
              "required": ["root", "a b", "a-b", "string", "é\"\\"]},
    "bounds": {"type": "array", "prefixItems": [{"type": "integer", "minimum": low, "maximum": high} for low, high in ((0, 0), (-7, -3), (17, 1203), (-105, 99), (9, 10))]},
    "one side": {"type": "array", "prefixItems": [{"type": "integer", "minimum": 38}, {"type": "integer", "maximum": -41}, {"type": "integer", "minimum": -6}, {"type": "integer", "maximum": 5}]},
}
