# The two commands of the README, under the names that a person expects; the scripts do the work.
# Arguments: make test ARGS="tests/session -k fork"
.PHONY: help demo test check

help:
	@echo 'make demo   install rath with a small language model and run example/readme.py on it'
	@echo 'make test   run the quick tests; ARGS="tests/session -k fork" goes to pytest'
	@echo 'make check  run everything that CI runs; ARGS="lint types" runs some steps of it'

demo:
	bash .ci/demo $(ARGS)

test:
	bash .ci/test $(ARGS)

check:
	bash .ci/run $(ARGS)
