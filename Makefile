# The commands that people need; each is one line to type by hand as well. `make` lists them; `make check` is what CI runs.

.PHONY: help setup test whole fast lint format docs bench rounds installed check
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install everything, with the tools that check it, and have git run the checks at each commit
	uv sync
	uvx pre-commit install

test: ## the tests, on real brokers: twenty minutes
	uv run pytest

whole: ## what of them is too long for each run, such as families of cases of which `make test` takes a slice
	uv run pytest -m whole

fast: ## the tests that start no brokers: two minutes
	uv run pytest tests/unit tests/simulation

lint: ## style, types, and which room imports which; changes nothing
	uv run ruff check .
	uv run ruff format --check .
	uv run mypy
	uv run lint-imports --no-cache

format: ## write the code as the formatter has it
	uv run ruff check --fix .
	uv run ruff format .

docs: ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 uv run --group docs mkdocs build --strict

bench: ## speed, beside MirrorMaker 2: minutes (all of it: uv run python -m bench, two to three hours)
	uv run python -m bench --quick

rounds: ## fault rounds: ROUNDS=10 SEED=1
	uv run python -m tests.faults.rounds --rounds $(or $(ROUNDS),10) --seed $(or $(SEED),1)

installed: ## the wheel as an installed tool, from an empty folder: a minute or more
	uv run pytest -n 0 -m whole tests/deploy/test_installed.py

check: ## what must hold before a change lands: an hour
	bash .ci/run
