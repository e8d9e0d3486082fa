"""YAML as configurations are written in it: a strict reader and an exact writer.

Scalars are read as the text they are written as, and `config/conversion.py` makes of it what the key declares: so a
file and `--set` read `0100`, `1:30` and `on` alike. Only null is distinguished from text here, by its quotes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from mlx_amort.amounts import shorten
from mlx_amort.errors import UserError, advice
from mlx_amort.files import read_regular

LARGEST_YAML_BYTES = 2**24
_RARE_LINE_ENDS = frozenset("\x85\u2028\u2029")
_SECTIONS_HINT = "write it as `section:` with `key: value` lines below"


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping a YAML file holds. Raises: UserError when it cannot be read or holds something else."""
    try:
        text = read_regular(path, LARGEST_YAML_BYTES + 1)
    except OSError as error:
        raise UserError(
            str(path), error.strerror or "cannot be read", f"{advice(error)}, or name another file"
        ) from error
    if len(text) > LARGEST_YAML_BYTES:
        why = f"is longer than the {LARGEST_YAML_BYTES:,} bytes that a configuration may have"
        raise UserError(str(path), why, "name a YAML file of sections and keys")
    content = parse_yaml(text, str(path), _SECTIONS_HINT)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(str(path), "does not hold sections", _SECTIONS_HINT)
    return content


def parse_yaml(text: str | bytes, what: str, hint: str) -> Any:
    """The value a YAML text holds. Raises: UserError about `what`, with `hint`, when it is not YAML."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except RecursionError as error:
        raise UserError(what, "is nested too deep", hint) from error
    # A ValueError comes from a scalar with a tag, such as `!!int x`.
    except (yaml.YAMLError, ValueError) as error:
        why = shorten(" ".join(str(error).split()))
        raise UserError(what, f"is not valid YAML ({why})", hint) from error


def yaml_of(content: Mapping[str, Any]) -> str:
    """YAML that is read back as it was, keys in their order."""
    return yaml.dump(content, Dumper=_ExactDumper, sort_keys=False, allow_unicode=True)


_NULL_TAG = "tag:yaml.org,2002:null"


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that leaves scalars text, and refuses a key given twice, where YAML would keep the last."""

    # First character of a scalar -> what it may be.
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag == _NULL_TAG]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{key}' is given twice", node.start_mark
                )
        return super().construct_mapping(node, deep=deep)


class _ExactDumper(yaml.SafeDumper):
    """SafeDumper that quotes the rarer line ends, which else come back as a space."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        style = '"' if _RARE_LINE_ENDS & set(text) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_ExactDumper.add_representer(str, _ExactDumper.represent_str)
