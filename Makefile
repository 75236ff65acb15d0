# `make help` lists the targets. Everything runs in the repository's own .venv, created on first use.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DELETE_ON_ERROR:  # no record of an interrupted training
unexport PYTHONDONTWRITEBYTECODE  # or every process compiles again what it imports
.NOTPARALLEL:  # table1 and fig1 do the same runs, in the same folders
.PHONY: help install demo sanity test lowest bounds lint types page docs bench mutation table1 fig1 table2 fig2 theta0_digits theta0_search table3 fig3 search_housing search_mnist search_table3 sweep_lambda front table_attacks table_defence table_t4 clean

help: ## list the targets
	@grep -hE '^[a-z0-9_]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /:/' | while IFS=: read -r name what; do \
		fold -s -w 80 <<< "$$what" | sed "1!s/^/$$(printf '%16s')/; 1s/^/$$(printf '%-16s' $$name)/; s/ *$$//"; done

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	@echo "installing into $(VENV): about 6 GB, most of it torch; 5 to 15 minutes, the last of them without a word"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

install: $(STAMP) ## create .venv with the tested versions of everything

demo: $(STAMP) ## the paper's method and erasure against all tiers of attackers, on embedded data, offline: a table and a figure
	@$(BIN)/python -m experiments.demo

sanity: $(STAMP) ## one MNIST pair, three checks and every named warning (docs/sanity_check.md); needs MNIST
	@$(BIN)/python -m experiments.sanity_mnist

# COVERAGE=1: fails where the quick tests of these rooms run less than 90 % of their branches; in others they are not counted.
rooms := spectrum objective evaluation
branches := outputs/coverage.json
cover := $(rooms:%=--cov=immunize.%) --cov-branch --cov-report=term:skip-covered --cov-report=json:$(branches)
tests = $(BIN)/python -m pytest -m "not wheel" $(REASONS) -n $(or $(JOBS),2) --dist worksteal
test: $(STAMP) ## run the test suite on JOBS=2 cores (set IMMUNIZE_DATA to include the tests on real data; COVERAGE=1 measures it, REASONS=-rs says what is skipped)
	@$(tests) $(if $(COVERAGE),$(cover) && $(BIN)/python .ci/branches.py $(branches) $(rooms))

old := outputs/lowest
lowest: ## the tests with the oldest versions of all dependencies, in an environment of their own (6 GB); TESTS=tests/spectrum: a part, JOBS as for test
	@mkdir -p $(old) && $(MAKE) --silent bounds > $(old)/bounds.txt
	@cmp -s $(old)/bounds.txt $(old)/installed.txt || { $(PYTHON) -m venv --clear $(old)/venv && \
	$(old)/venv/bin/python -m pip install -c $(old)/bounds.txt -e '.[dev]' && cp $(old)/bounds.txt $(old)/installed.txt; }
	@PYTHONPATH=. $(old)/venv/bin/python -m pytest -p no:cacheprovider -n $(or $(JOBS),2) --dist worksteal $(or $(TESTS),-m "not wheel")

bounds: ## print the lower bound of every dependency, as constraints of pip
	@sed -nE 's/^ *"([a-z0-9_-]+)>=([0-9.]+).*/\1==\2/p' pyproject.toml | sort -u

lint: $(STAMP) ## ruff: style, docstrings, formatting
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy

page: $(STAMP) ## one HTML file of a run (RUN=folder) or a sweep (SWEEP=folder)
	@$(BIN)/python -m immunize.report html $(if $(RUN),run=$(RUN),sweep=$(SWEEP))

docs: $(STAMP) ## the documentation site, built strictly, in outputs/site
	@echo "building the site: about half a minute"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site: outputs/site/index.html"

bench: $(STAMP) ## every benchmark against its limit, one table: experiments/bench/README.md; about an hour; PART=mnist: one part, PART=rest: those without numbers of this commit
	@$(BIN)/python -m experiments.bench $(PART)

mutation: $(STAMP) ## would the tests of spectrum/ and objective/ notice a change? SAMPLE=400 or all (experiments/mutation/method.md), AGAIN=survived
	@OMP_NUM_THREADS=1 $(BIN)/python -m experiments.mutation $(if $(SAMPLE),sample=$(SAMPLE)) $(if $(AGAIN),again=$(AGAIN))

# FAST=1 makes the reduced version of a sweep; what it leaves lies below outputs/ only. ARGS="method=ours" KEEP=1 makes one method
# of a table or search again, and leaves the others as they are.
fast := $(if $(filter 1,$(FAST)),_fast)
ifneq ($(and $(fast),$(filter table3 fig3 search_table3,$(MAKECMDGOALS))),)
$(error table3, fig3 and search_table3 have no FAST=1; SCALE=digits takes minutes, SCALE=small hours)
endif
define sweep
@$(BIN)/python -m immunize.train experiment=$(1)$(fast) $(ARGS)
endef
define report
@$(BIN)/python -m $(2) experiment=$(1) runs=outputs/$(or $(3),$(1))$(fast) out=$(if $(fast),outputs/$(1)$(fast)/report,experiments/$(1)) $(if $(KEEP),keep=true)
endef

table1: $(STAMP) ## Table 1: House Prices, every method, 5 seeds, in experiments/table1; FAST=1: a reduced version in outputs
	$(call sweep,table1)
	$(call report,table1,immunize.report)

fig1: $(STAMP) ## Figure 1: norm-ratio curves on House Prices, from the runs of table1, which are made if they are not there
	$(call sweep,table1)
	$(call report,fig1,immunize.report,table1)

table2: $(STAMP) ## Table 2: MNIST, 90 pairs, every method, 3 seeds, in experiments/table2; FAST=1: a reduced version
	$(call sweep,table2)
	$(call report,table2,immunize.report)

fig2: $(STAMP) ## Figure 2: heat maps of log(RIR) over digit pairs, from the runs of table2, which are made if they are not there
	$(call sweep,table2)
	$(call report,fig2,immunize.report,table2)

# SCALE: empty is full scale, small two cores and real images, digits embedded data in minutes. Each has its own results.
deep := $(if $(SCALE),_$(SCALE))
runs3 := outputs/table3$(deep)
# One thread: two round otherwise, and end with another θ_0, of which every number below follows.
pretrain = $(BIN)/python -m immunize.pretrain pretrain=digits augment=false threads=1 seed=$* hydra.run.dir=$(@D)
resnet_small = model=resnet_small
vit_small = model=vit_small batch_size=32 learning_rate=0.05 epochs=60
theta0 = $(foreach seed,0 1 2,$(foreach net,vit_small resnet_small,outputs/$(1)/$(net)_digits_$(seed)/record.json))
train_theta0 = @case "$(SCALE)" in digits|search) ;; *) exit;; esac; printf '%s\n' $(theta0) | xargs -P $(or $(JOBS),2) -n 1 $(MAKE) --quiet

# At full scale the accelerators that there are, and a process a core that reads images: TRAINER=cpu|gpu|ddp, WORKERS=8 say otherwise.
gpus = $(shell nvidia-smi -L 2>/dev/null | wc -l)
found = $(if $(filter 0,$(gpus)),cpu,$(if $(filter 1,$(gpus)),gpu,ddp))
machine = $(if $(SCALE),,trainer=$(or $(TRAINER),$(found)) deep.workers=$(or $(WORKERS),$(shell nproc)))

theta0_digits: $(STAMP) ## θ_0 for SCALE=digits: a small ResNet and a small ViT for each seed, trained on digits 0 to 4; nothing for other scales
	$(call train_theta0,theta0)

theta0_search: $(STAMP) ## the same for search_table3, without the fifth of the images that it judges by
	$(call train_theta0,theta0_search)

outputs/theta0/resnet_small_digits_%/record.json:
	@$(pretrain) $(resnet_small)

outputs/theta0/vit_small_digits_%/record.json:
	@$(pretrain) $(vit_small)

outputs/theta0_search/resnet_small_digits_%/record.json:
	@$(pretrain) $(resnet_small) validation_fraction=0.2

outputs/theta0_search/vit_small_digits_%/record.json:
	@$(pretrain) $(vit_small) validation_fraction=0.2

table3: theta0_digits ## Table 3: deep nets, every method, 3 seeds, in experiments/table3; SCALE=small: two cores; SCALE=digits: minutes, offline; full scale: TRAINER, WORKERS, ARGS="deep.batch_size=512"
	@$(BIN)/python -m immunize.train experiment=table3$(deep) $(machine) $(ARGS)
	@$(BIN)/python -m immunize.report experiment=table3 runs=$(runs3) out=experiments/table3$(deep)

fig3: theta0_digits ## Figure 3: accuracy of a linear probe on D_H, from the runs of table3 (SCALE as there), which are made if they are not there
	@$(BIN)/python -m immunize.train experiment=table3$(deep) $(machine) $(ARGS)
	@$(BIN)/python -m immunize.report experiment=fig3 runs=$(runs3) out=experiments/fig3$(deep)

search_housing: $(STAMP) ## choose each method's hyper-parameters for Table 1 on a validation split; FAST=1: a reduced version
	$(call sweep,search_housing)
	$(call report,search_housing,experiments.search)

search_mnist: $(STAMP) ## the same for Table 2
	$(call sweep,search_mnist)
	$(call report,search_mnist,experiments.search)

search_table3: theta0_search ## the same for Table 3, on validation images: SCALE=small (an hour and a half; needs the image sets), digits, or full scale with TRAINER, WORKERS, ARGS
	@$(BIN)/python -m immunize.train experiment=search_table3$(deep) $(machine) $(ARGS)
	@$(BIN)/python -m experiments.search_deep experiment=search_table3$(deep) runs=outputs/search_table3$(deep) out=experiments/search_table3$(deep)

sweep_lambda: $(STAMP) ## (i) against (ii) over λ_H/λ_P on House Prices, in experiments/sweep_lambda; FAST=1: a reduced version
	$(call sweep,sweep_lambda)
	$(call report,sweep_lambda,immunize.report)

front: theta0_digits ## RIR against D_P's accuracy of networks over λ_H/λ_P, η and trained layers: SCALE=digits (half an hour) or small (as long; needs the image sets)
	@test -n "$(SCALE)" || { echo "front has SCALE=digits and SCALE=small"; exit 1; }
	@$(BIN)/python -m immunize.train experiment=front$(deep)
	@$(BIN)/python -m experiments.network_front experiment=front$(deep) runs=outputs/front$(deep) out=experiments/front$(deep)

table_attacks: theta0_digits ## methods against attackers, all tiers: House Prices and MNIST (runs of table1, table2), or SCALE=digits|small (runs of table3); SCALE=rotations: 20 random rotations (runs of table_defence SCALE=small)
	@$(BIN)/python -m experiments.table_attacks scale=$(or $(SCALE),linear)
	@$(BIN)/python -m immunize.report experiment=table_attacks runs=outputs/attacks_$(or $(SCALE),linear) out=experiments/attacks_$(or $(SCALE),linear)

table_defence: SCALE ?= digits
table_defence: $(if $(filter search,$(SCALE)),theta0_search,theta0_digits) ## methods x tiers x (harmful, D_P, benign tasks): retention with intervals and the figures, in experiments/defence_digits; SCALE=small: real images, hours; SCALE=front: other weights of censor; SCALE=linear: other ranks of erase; SCALE=search: those that were tried on digits, by validation images; SCALE=weights ARGS=trainer=gpu: on a ResNet18, by an accelerator
	@$(if $(filter digits,$(SCALE)),$(BIN)/python -m immunize.train experiment=defence_linear)
	@$(BIN)/python -m immunize.train experiment=defence_$(SCALE) $(ARGS)
	@$(BIN)/python -m experiments.table_attacks scale=defence_$(SCALE)
	@$(BIN)/python -m immunize.report experiment=table_attacks runs=outputs/attacks_defence_$(SCALE) out=experiments/defence_$(SCALE)

table_t4: SCALE ?= digits
table_t4: theta0_digits ## fine-tuning over a thousand steps: methods and their peers, area under the retention curve and steps to a share of θ_0's end; SCALE=small: a ResNet18 on real images, hours of two cores
	@$(BIN)/python -m immunize.train experiment=t4_$(SCALE) $(ARGS)
	@$(BIN)/python -m experiments.table_attacks scale=t4_$(SCALE)
	@$(BIN)/python -m immunize.report experiment=table_attacks runs=outputs/attacks_t4_$(SCALE) out=experiments/t4_$(SCALE)

clean: ## remove outputs and caches, not the .venv
	rm -rf outputs multirun build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
