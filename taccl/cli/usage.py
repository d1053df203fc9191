"""What the parser of the command line objects to, told as all errors are: where, what, the fix."""

import re
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from typer._click.exceptions import UsageError as UsageError
else:
    # Typer names no error of its parser but this one, which is the child of what they all are.
    UsageError = typer.BadParameter.__mro__[1]


_SUGGESTED = re.compile(r"(.*?)\.? Did you mean (.*)\?")


def usage_told(error: UsageError) -> str:
    """Return the two lines for an error of the parser, or the help that it stands for."""
    message = str(error.format_message())
    if message.startswith("Usage:"):  # a group of commands was named, and none of them
        return message
    shows = f"{error.ctx.command_path if error.ctx else 'taccl COMMAND'} --help shows what there is"
    match = _SUGGESTED.fullmatch(message)
    if isinstance(error, typer.BadParameter) and error.param is not None:
        problem, fix = _of_value(error, message)
    elif option := getattr(error, "option_name", None):
        problem, fix = _of_option(error, option, message, shows)
    elif match is not None:
        problem, fix = _lower(match[1]), f"did you mean {match[2].replace(chr(39), '')}? {shows}"
    else:
        problem, fix = _lower(message), shows
    return f"error: {problem}\n  fix: {fix}"


def _of_value(error: typer.BadParameter, message: str) -> tuple[str, str]:
    """Return what is wrong with the value of an option or argument, and the fix."""
    param = error.param
    if param is None or error.ctx is None:
        return _lower(message), "taccl COMMAND --help shows what there is"
    is_option = param.param_type_name == "option"
    where = max(param.opts, key=len) if is_option else str(param.name).upper()
    problem = "is missing" if message.startswith("Missing") else _lower(error.message)
    name, about = param.get_help_record(error.ctx) or (where, "")
    return f"{where}: {problem}", f"give {name}: {about}"


def _of_option(error: UsageError, option: str, message: str, shows: str) -> tuple[str, str]:
    """Return what is wrong with an option that there is not, or with its having a value."""
    if "No such" in message:
        close = ", ".join(getattr(error, "possibilities", None) or ())
        suggested = f"did you mean {close}? " if close else ""
        return f"{option}: there is no such option", f"{suggested}{shows}"
    if "does not take" in message:
        return f"{option}: takes no value", f"write {option} alone"
    return f"{option}: wants a value", f"write it after {option}; {shows}"


def _lower(text: str) -> str:
    return (text[:1].lower() + text[1:].rstrip(".")).removeprefix("input ")
