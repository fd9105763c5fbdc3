# One image for every command: Python, a Java runtime for Spark, the locked dependencies, and the jars resolved at build
# time, so that nothing is fetched when a container starts.
#
#   docker build -t verbatim .
#   docker run --rm verbatim replicator --help
#
# Build arguments:
#   JARS         which of common/spark/jars.py to bring along: DELTA (default); "DELTA KAFKA KAFKA_LOGGING" adds the local brokers
#                of verbatim.local.kafka_cluster
#   EXTRA_JARS   Maven coordinates, space-separated, that go to /opt/verbatim/extra-jars: a Hadoop file system for STATE_PATH, say
#                (org.apache.hadoop:hadoop-aws:3.5.0 for s3a://). Spark takes them with
#                --conf spark.driver.extraClassPath=/opt/verbatim/extra-jars/*
#   DEFAULT_ARTIFACT_REPOSITORY, UV_DEFAULT_INDEX   mirrors of Maven Central and PyPI
#
# What only a build knows, its revision and the like, are labels given to it; that, both architectures and a bill of materials:
# docs/guides/kubernetes.md, "The image".

# Debian 12 is the last one with Java 17, the version that is tested.
FROM python:3.11-slim-bookworm AS base
# Not pinned: Debian keeps one version, and takes the old one away when it fixes a hole.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless tini \
    && rm -rf /var/lib/apt/lists/*

# An argument stands as late as it can: whatever comes after it is built anew when it changes.
FROM base AS dependencies
ARG UV_DEFAULT_INDEX=""
ENV UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PROJECT_ENVIRONMENT=/opt/verbatim \
    UV_PYTHON_DOWNLOADS=never \
    VERBATIM_JARS=/opt/verbatim/jars
RUN pip install --no-cache-dir --root-user-action=ignore uv==0.13.9
WORKDIR /src
COPY pyproject.toml uv.lock ./
RUN if [ -z "$UV_DEFAULT_INDEX" ]; then unset UV_DEFAULT_INDEX; fi \
    && uv sync --locked --no-dev --extra otel --extra validate --extra sql --extra encrypt --no-install-project --no-cache
COPY common/__init__.py common/errors.py common/
COPY common/spark/__init__.py common/spark/jars.py common/spark/
COPY container/fetch_jars.py container/

FROM dependencies AS extra
ARG DEFAULT_ARTIFACT_REPOSITORY=""
ARG EXTRA_JARS=""
RUN /opt/verbatim/bin/python container/fetch_jars.py --extra "$EXTRA_JARS" --extra-folder /opt/verbatim/extra-jars

FROM dependencies AS build
ARG DEFAULT_ARTIFACT_REPOSITORY=""
ARG JARS="DELTA"
# JARS is a list of words.
# hadolint ignore=SC2086
RUN /opt/verbatim/bin/python container/fetch_jars.py $JARS
COPY README.md LICENSE ./
COPY common/ common/
COPY replicator/ replicator/
COPY deduplicator/ deduplicator/
COPY offsets/ offsets/
COPY schemas/ schemas/
# verbatim init hands on the base.
COPY k8s/ k8s/
COPY verbatim/ verbatim/
COPY verbatim_kafka/ verbatim_kafka/
RUN if [ -z "$UV_DEFAULT_INDEX" ]; then unset UV_DEFAULT_INDEX; fi \
    && uv sync --locked --no-dev --extra otel --extra validate --extra sql --extra encrypt --no-editable --no-cache

# Half of what a start costs is loading Spark's classes: they are laid by.
COPY container/lay_by_classes.py container/
RUN /opt/verbatim/bin/python container/lay_by_classes.py

FROM base AS runtime
LABEL org.opencontainers.image.title="Verbatim" \
      org.opencontainers.image.description="Exactly-once replication of Kafka topics between clusters, on Spark" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"
# Named, because Hadoop asks who it is and fails on a number without a name.
RUN useradd --uid 10001 --gid 0 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin verbatim \
    && install -d -o 10001 -g 0 -m 0770 /var/lib/verbatim
COPY --from=build /opt/verbatim /opt/verbatim
COPY --from=extra /opt/verbatim/extra-jars /opt/verbatim/extra-jars
COPY container/spark-executor /usr/local/bin/spark-executor
# All that is written goes to /tmp (scratch: nothing in it is needed again) and to STATE_PATH, so the root file system can be
# read-only. HOME and the working directory are /tmp for what Spark and Ivy put there unasked.
ENV PATH=/opt/verbatim/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    VERBATIM_JARS=/opt/verbatim/jars \
    STATE_PATH=/var/lib/verbatim/state \
    HEALTH_ADDRESS=0.0.0.0
WORKDIR /tmp
VOLUME /var/lib/verbatim
EXPOSE 8080
USER 10001:0
# Whether the main loop turns. Not /readyz: what starts unhealthy containers anew would do so while a cluster is away. Kubernetes has
# probes of its own. A command that serves no port, and lasts, is run with --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=6 \
    CMD ["python", "-c", "import http.client, os; \
port = int(os.environ.get('HEALTH_PORT') or 8080); \
asked = http.client.HTTPConnection('127.0.0.1', port, timeout=4); \
port and asked.request('GET', '/healthz'); \
raise SystemExit(port and asked.getresponse().status != 200)"]
# tini hands SIGTERM on to the command and reaps the Python workers that Spark's daemon leaves behind.
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["verbatim", "--help"]
