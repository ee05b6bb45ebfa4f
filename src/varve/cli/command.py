"""Commands as click declares them: lazily imported, with help in sections and examples.

A command's help is its docstring, then its own options, then each group of shared options under
its title, then its examples. A group knows the summaries of its commands, so that help imports no
command. `python -m pytest tests/unit/cli/test_command_table.py` checks summaries and examples.
"""

import difflib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from varve.foundation.errors import Locked

COMMON_SECTION: Final = "Common options"
_OWN_OPTIONS: Final = "Options"
_CONTEXT: Final = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "show_default": True,
}


class Entry(NamedTuple):
    """A command that is not imported yet: `module:function` within `varve.cli`, and its summary."""

    target: str
    summary: str


class SharedOption(click.Option):
    """An option that several commands take, listed under the title of its group."""

    def __init__(self, *args: Any, section: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class AliasedOption(click.Option):
    """An option with further spellings that help does not list."""

    def __init__(self, *args: Any, aliases: Sequence[str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._aliases = tuple(aliases)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        listed = self.opts
        self.opts = [*listed, *self._aliases]
        super().add_to_parser(parser, ctx)
        self.opts = listed


class VarveCommand(click.Command):
    """A command with examples, whose help lists shared options after its own."""

    def __init__(self, *, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(context_settings=_CONTEXT, **settings)
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from varve.cli.kafka_options import find_counterpart

            names = {parameter.name for parameter in self.params}
            if counterpart := find_counterpart(error.option_name, self._known_words()):
                raise click.UsageError(
                    f"no option {error.option_name}, which is Kafka's: use {counterpart}", ctx
                ) from error
            if error.option_name in ("-d", "--dir") and "bootstrap" in names:
                raise click.UsageError(
                    f"{ctx.command_path} asks a broker: name it with --bootstrap, or start one on "
                    "the directory with `varve serve --dir DIR`",
                    ctx,
                ) from error
            if error.option_name in ("-b", "--bootstrap") and "dir" in names:
                raise click.UsageError(
                    f"{ctx.command_path} reads the files of a log directory: stop its broker and "
                    "name the directory with --dir",
                    ctx,
                ) from error
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Locked as error:
            if not error.address:
                raise
            names = {parameter.name for parameter in self.params}
            if "bootstrap" in names:
                raise Locked(f"{error}, or use -b {error.address}") from error
            if {"dir", "listen"} <= names:
                raise Locked(f"{error}, or serve another directory with --dir") from error
            raise

    def _known_words(self) -> set[str]:
        """The options, and the first words of the arguments."""
        words = {option for parameter in self.params for option in parameter.opts}
        arguments = [one.metavar or "" for one in self.params if isinstance(one, click.Argument)]
        return words | {re.split(r"\W", metavar.lstrip("["))[0] for metavar in arguments}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section of options per group, the command's own first, common ones last."""
        sections: dict[str, list[tuple[str, str]]] = {_OWN_OPTIONS: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            is_help = "--help" in parameter.opts  # whoever reads this has found it
            if record is not None and isinstance(parameter, click.Option) and not is_help:
                section = getattr(parameter, "section", _OWN_OPTIONS)
                sections.setdefault(section, []).append(record)
        for title in sorted(sections, key=lambda title: title == COMMON_SECTION):
            if sections[title]:
                with formatter.section(title):
                    formatter.write_dl(sections[title])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{' ' * formatter.current_indent}{example}\n")


class CommandGroup(click.Group):
    """Commands of a table, each imported when it is used."""

    def __init__(
        self,
        entries: Mapping[str, Entry | click.Command],
        *,
        synonyms: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(context_settings=_CONTEXT, **settings)
        self.entries = dict(entries)
        self._synonyms = dict(synonyms or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # Kafka's tools take the action as an option: `--create` is the command `create`.
            name = error.option_name.removeprefix("--")
            if name not in self.entries and name not in self._synonyms:
                raise
            raise click.UsageError(
                f"no option {error.option_name}.{self._suggest(ctx.command_path, name)}", ctx
            ) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if isinstance(entry, Entry):
            module, _, function = entry.target.partition(":")
            command = getattr(importlib.import_module(f"varve.cli.{module}"), function)
            assert isinstance(command, click.Command)
            return command
        return entry

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, summary_of(entry)) for name, entry in self.entries.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.entries:
            ctx.fail(f"no command {args[0]!r:.80}.{self._suggest(ctx.command_path, args[0])}")
        return super().resolve_command(ctx, args)

    def _suggest(self, path: str, name: str) -> str:
        meant = f"{path} {name}" if name in self.entries else self._synonyms.get(name)
        if meant is None:
            near = difflib.get_close_matches(name, self.entries, n=1, cutoff=0.6)
            meant = f"{path} {near[0]}" if near else None
        if meant is not None:
            return f" Did you mean `{meant}`?"
        return f" `{path} --help` lists the commands."


def summary_of(entry: Entry | click.Command) -> str:
    return entry.summary if isinstance(entry, Entry) else entry.get_short_help_str(limit=200)


def command(*examples: str) -> Callable[[Callable[..., None]], VarveCommand]:
    """Declare a function as a command with examples; its docstring is the help."""
    return click.command(cls=VarveCommand, examples=examples)
