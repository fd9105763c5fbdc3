"""The tree of errors. Each names what was found, where, and what to do, in one line; nothing here does I/O.

VerbatimError             exit 1
├── SettingsError         exit 2  a variable, flag or file is missing or ill-formed
├── LinkRefused           exit 2  a cluster, topic or right the link needs is not as it must be
├── GroupRefused          exit 2  a consumer group is as ON_ACTIVE_GROUP or ON_SEVERAL_TARGETS forbids
├── FrameError                    a staging record is no readable frame (counts as missing)
│   └── ImpossibleFrame           its headers say what no writer would
├── ControlError          exit 1  a control record can't be understood
├── StateError            exit 1  the Delta state can't be read, or moved under a fold
├── Deposed                       another instance leads: stop, and call no init_transactions
├── UncleanTransaction            outcome unknown: drop the producer and recover
├── KafkaTimeout          exit 1  a bounded Kafka call ran out of time
├── RegistryError         exit 1  a schema registry can't be reached, refuses, or does not do what it says
├── SchemaMismatch        exit 2  a schema id that was mapped means another schema now
├── PartitionsHalted      exit 3  a bounded run ended with partitions that could not be copied
├── GroupsFailed          exit 3  a bounded run ended with groups that could not be moved
└── SchemasFailed         exit 3  a bounded run ended with subjects that could not be brought in step
"""

from __future__ import annotations

import traceback
from pathlib import PurePath
from typing import Any


class VerbatimError(Exception):
    """Base of all errors of the project. `exit_code` is what a command ends with; `retriable` whether trying
    again may help."""

    exit_code = 1
    retriable = False

    def __str__(self) -> str:
        return " ".join(super().__str__().split())


class SettingsError(VerbatimError):
    """A setting is missing or ill-formed. The message begins with the variable's name and never shows a
    secret."""

    exit_code = 2


class LinkRefused(VerbatimError):
    """The link can't be run as configured: wrong cluster, topic, version or rights."""

    exit_code = 2


class GroupRefused(VerbatimError):
    """Offsets of a consumer group can't be written, and the settings say to fail then."""

    exit_code = 2


class FrameError(VerbatimError):
    """A staging record that is no readable frame. It counts as missing: repair brings its records again."""


class ImpossibleFrame(FrameError):
    """A frame whose headers can be read and say what no writer would. `frame` (common.link.frame.Frame) is
    what they say, `crc` its value's checksum."""

    def __init__(self, what: str, frame: Any, crc: int) -> None:
        super().__init__(what)
        self.frame, self.crc = frame, crc


class ControlError(VerbatimError):
    """A record of the control topic that this version does not understand."""


class StateError(VerbatimError):
    """The Delta state table is unreadable, or its M moved while a fold was under way."""

    retriable = True


class Deposed(VerbatimError):
    """A newer leader of the application is named in the control topic."""


class UncleanTransaction(VerbatimError):
    """A transaction whose outcome must not be judged by this producer any more."""

    retriable = True


class KafkaTimeout(VerbatimError):
    """A bounded call to Kafka ran out of time."""

    retriable = True


class RegistryError(VerbatimError):
    """A schema registry can't be reached, refuses what is asked, or does not do what it says that it did."""

    def __init__(
        self, what: str, status: int | None = None, code: int | None = None, retriable: bool = False
    ) -> None:
        """`status` and `code`: HTTP's, and the API's own."""
        super().__init__(what)
        self.status, self.code, self.retriable = status, code, retriable


class SchemaMismatch(VerbatimError):
    """A schema id that records have been mapped by means another schema now, at one of the registries."""

    exit_code = 2


class PartitionsHalted(VerbatimError):
    """A bounded run copied what it could; some partitions are halted."""

    exit_code = 3


class GroupsFailed(VerbatimError):
    """A run moved the groups that it could; others are in doubt, or Kafka refused their offsets, or did not
    say that it has taken them."""

    exit_code = 3


class SchemasFailed(VerbatimError):
    """A run brought the subjects in step that it could; others are refused by a registry, or in conflict."""

    exit_code = 3


def what_and_where(error: BaseException) -> str:
    """The kind of an unexpected error and where in the code it came up; without its message, which may quote
    a record."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
