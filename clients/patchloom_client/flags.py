"""Command-line flags made from the request options and from the service's settings."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, NoReturn

from patchloom_client.errors import InvalidMessage

_SWITCHES = ("add_generation_prompt", "continue_final_message", "positions", "show_messages")
_REPEATED = ("known_content_keys",)


class Parser(argparse.ArgumentParser):
    """Flags in full, never abbreviated; a wrong command line is an error like any other."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """Raises InvalidMessage with argparse's words and the command whose help explains more."""
        raise InvalidMessage(f"{message}; see {self.prog} --help", "flags")


def add_request_flags(parser: argparse.ArgumentParser, options: Mapping[str, str]) -> None:
    """One flag per request option, with its help; an absent flag leaves the request file's value."""
    group = parser.add_argument_group('request options (over the file\'s "patchloom" key)')
    for name, text in options.items():
        flag = f"--{name.replace('_', '-')}"
        if name in _SWITCHES:
            group.add_argument(flag, dest=f"option_{name}", action=argparse.BooleanOptionalAction, help=text)
        elif name in _REPEATED:
            group.add_argument(
                flag, dest=f"option_{name}", action="extend", nargs="+", metavar="KEY", help=text
            )
        else:
            group.add_argument(flag, dest=f"option_{name}", metavar="VALUE", help=text)


def request_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that flags set; numbers are read as such."""
    found = {}
    for key, value in vars(arguments).items():
        if key.startswith("option_") and value is not None:
            name = key.removeprefix("option_")
            found[name] = _read(name, value) if isinstance(value, str) else value
    return found


def _read(name: str, value: str) -> Any:
    if name in ("min_pixels", "max_pixels", "shards"):
        return int(value) if value.lstrip("-").isdigit() else value
    if name in ("lease_time", "now"):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def add_setting_flags(
    parser: argparse.ArgumentParser, settings: Sequence[Field[Any]], skip: frozenset[str] = frozenset()
) -> None:
    """One flag per field of the service's Config, with its default and help."""
    group = parser.add_argument_group("service settings")
    for item in settings:
        if item.name in skip:
            continue
        flag = f"--{item.name.replace('_', '-')}"
        default = item.default
        assert default is not MISSING
        text = f"{item.metadata['help']} (default: {default if default != () else 'none'})".replace("%", "%%")
        if isinstance(default, tuple):
            group.add_argument(flag, dest=f"setting_{item.name}", action="append", metavar="VALUE", help=text)
        else:
            kind = type(default)
            group.add_argument(flag, dest=f"setting_{item.name}", type=kind, metavar="VALUE", help=text)


def settings(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """The settings that flags set, as keyword arguments of Config."""
    return {
        key.removeprefix("setting_"): tuple(value) if isinstance(value, list) else value
        for key, value in vars(arguments).items()
        if key.startswith("setting_") and value is not None
    }


def config_fields() -> tuple[Field[Any], ...]:
    """The fields of the service's Config; needs the extra `service`."""
    from patchloom_service.config import Config

    return fields(Config)
