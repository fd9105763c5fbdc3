"""What Kafka's errors mean: which pass, which say that a right is missing; and calls that ride out those that
pass. Makes no client."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.errors import KafkaTimeout, LinkRefused
from common.ports import Deadline

T = TypeVar("T")
TRANSACTION_TIMEOUT_MS = 60_000
"""Of every transaction of the link's; brokers allow fifteen minutes where `transaction.max.timeout.ms` says
nothing else."""
NO_RIGHTS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
_AGAIN = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._WAIT_COORD,
        # "No leaders found", of all partitions that were asked for.
        KafkaError._NOENT,
        KafkaError._RESOLVE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        # While leaders move, a client's metadata is older than a broker's, or newer.
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.KAFKA_STORAGE_ERROR,
    }
)


def kafka_error(error: BaseException) -> KafkaError | None:
    """The KafkaError inside an exception, if there is one."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return None


def retriable(error: KafkaError) -> bool:
    """Whether Kafka or librdkafka calls the error passing."""
    return error.retriable() or error.code() in _AGAIN


def lacks_right(error: KafkaError) -> bool:
    """Whether a right is missing. What a gapless producer is refused ends it, and the reason stands in the
    text alone."""
    return error.code() in NO_RIGHTS or "authorization failed" in error.str()


def denied(what: str, error: KafkaError, group: object = None, right: str = "the right") -> LinkRefused:
    """What to raise where a right is missing; `group`: the client's, which Kafka does not name where it is
    about that."""
    if group is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        what, right = f"{what} as group {group}", "the right"
    # A controller's own words may be a dump of the request, another one each time.
    words = KafkaError(error.code()).str() if "Request(" in error.str() else error.str()
    return LinkRefused(f"{what}: not allowed: {words}; grant {right} or mend the credentials")


def too_short(longest: object = "a shorter time") -> LinkRefused:
    """What to raise where brokers allow no transaction of the length of ours."""
    return LinkRefused(
        f"the target's brokers have transaction.max.timeout.ms={longest}, and a transaction of the link may take {TRANSACTION_TIMEOUT_MS} ms: "
        "set it to that or more in the brokers' configuration"
    )


def retrying(what: str, call: Callable[[float], T], deadline: Deadline) -> T:
    """Call until it succeeds, riding out what is retriable; `call` gets a time-out in seconds for one try.

    Raises LinkRefused where rights are missing, KafkaTimeout at the deadline, the KafkaException otherwise.
    """
    pause = 0.05
    while True:
        try:
            return call(max(0.1, deadline.left(10.0)))
        except KafkaException as error:
            reason = kafka_error(error)
            if reason is not None and reason.code() in NO_RIGHTS:
                raise denied(what, reason) from None
            if reason is None or not retriable(reason):
                raise
            if deadline.left() <= pause:
                raise KafkaTimeout(f"{what}: {reason.str()}; gave up after the time allowed") from None
        ports.sleep(pause)
        pause = min(1.0, pause * 2)


def future_result(future: Future[T], timeout_s: float) -> T:
    """The result of an admin call's future; a future that is late raises the same exception as a late
    broker."""
    try:
        return future.result(timeout=timeout_s)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
