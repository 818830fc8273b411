# Tailbound. `make help` lists the targets. A fresh Debian or Ubuntu needs nothing but make, git and a shell first.
#
# How it hangs together: native/*/*.c -> build/core/*.o -> build/libtailbound.a; that and the generated binding ->
# transport/tailbound/_tailbound.abi3.so, which .venv sees through an editable install. Tests link all of native/ again under
# sanitizers (build/san, build/tsan). Nothing here is a list of files: what lies in a folder is built.

SHELL  := /bin/sh
PYTHON ?= python3
CC     ?= cc
CLANG  ?= clang
VENV   := .venv
PY     := $(VENV)/bin/python
SITE   := transport/tailbound/_tailbound.abi3.so

FLAGS := -std=c11 -D_GNU_SOURCE -g -Wall -Wextra -Werror -Inative -Inative/include -MMD -MP
OPT   := -O2 -fPIC -fvisibility=hidden
SAN   := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
TSAN  := -O1 -fno-omit-frame-pointer -fsanitize=thread
FUZZ  := -O1 -Wno-pass-failed -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
LIBS  := -lm -lpthread

# The tests that run threads of their own, or the progress thread: these run under TSan too.
TSAN_TESTS := test_rendezvous test_rendezvous_root test_rendezvous_lobby test_rendezvous_gather test_engine test_init test_udp test_udp_tx \
  test_udp_rx test_udp_wait test_logring test_work
FUZZ_SECONDS ?= 60
# Seconds that one C test program may take.
TEST_LIMIT ?= 300

NATIVE  := $(wildcard native/*/*.c)
CTESTS  := $(sort $(basename $(notdir $(wildcard tests/native/test_*.c))))
CHELP   := $(filter-out $(wildcard tests/native/test_*.c tests/native/fuzz_*.c),$(wildcard tests/native/*.c))
FUZZERS := $(sort $(basename $(notdir $(wildcard tests/native/fuzz_*.c))))
BENCHES := $(sort $(filter-out common%,$(basename $(notdir $(wildcard bench/*.c)))))
BCOMMON := $(wildcard bench/common*.c)
TSAN_HERE := $(filter $(TSAN_TESTS),$(CTESTS))

core_o = $(patsubst %.c,$(1)/%.o,$(NATIVE))

# A plugin's tests are linked with its sources as well, and with its library; DPDK is asked for only when it is needed.
PLUGINS := transport/tailbound/plugins
COMMON  := $(wildcard native/plugins/common/*.c)
DPDK    := $(filter-out %/rehearse.c,$(wildcard native/plugins/dpdk/*.c)) $(COMMON)
DPDK_TESTS := $(sort $(basename $(notdir $(wildcard tests/dpdk/test_*.c))))
DPDK_TOOLS := capture
dpdk_cflags = $(shell pkg-config --cflags libdpdk | sed 's/-I/-isystem /g')
dpdk_libs   = -Wl,--as-needed $(shell pkg-config --libs libdpdk)
VERBS   := $(wildcard native/plugins/verbs/*.c) $(COMMON)
VERBS_TESTS := $(sort $(basename $(notdir $(wildcard tests/verbs/test_*.c))))
# These need an RDMA device: tests/guest runs them in a machine that has two.
VERBS_TOOLS := peer
VERBS_DEVICE_TESTS := test_conformance test_device test_ref

MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)

.PHONY: help setup build demo test bench bench-sim lint fuzz clean native-tests plugins dpdk-tests verbs-tests
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDARY:

help:
	@echo 'make demo    the main job: train over a lossy network, on time, beside an exact run'
	@echo 'make test    lint, C tests under sanitizers, Python tests; one closing line with the counts'
	@echo 'make build   the core, the Python binding (.venv) and the perf binaries (build/bench)'
	@echo 'make plugins the links that need a library of their own (DPDK, RDMA verbs): $(PLUGINS)'
	@echo 'make bench   the perf binaries, and a short run of each on this machine'
	@echo 'make bench-sim  every claim over the simulated network: tables and plots in build/bench-sim'
	@echo 'make lint    ruff over all Python'
	@echo 'make fuzz    libFuzzer on the packet path, FUZZ_SECONDS=$(FUZZ_SECONDS)'
	@echo 'make setup   only what the others need: Debian packages, .venv'
	@echo 'make clean   removes build/ and the binding; .venv stays (rm -r .venv)'
	@echo 'Settings: PYTHON=$(PYTHON) CC=$(CC) CLANG=$(CLANG)'

# ---- what a fresh machine lacks -------------------------------------------------------------------------------------------

build/need-%: scripts/need.sh
	@mkdir -p build
	@PYTHON='$(PYTHON)' CC='$(CC)' CLANG='$(CLANG)' sh scripts/need.sh $*
	@touch $@

$(VENV)/installed: requirements-dev.txt | build/need-build
	@$(PY) -c 'import pip' 2>/dev/null || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); }
	@echo 'installing the Python packages of requirements-dev.txt into $(VENV)'
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

$(VENV)/editable: pyproject.toml setup.py $(VENV)/installed
	@TAILBOUND_BUILD_EXT=0 $(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

setup: build/need-build build/need-test $(VENV)/editable

# ---- the core and the binding ---------------------------------------------------------------------------------------------

# Objects depend on the flags they were made with: a changed Makefile rebuilds them. So does a file that went away.
build/sources: FORCE
	@mkdir -p build
	@echo '$(NATIVE)' | cmp -s - $@ || echo '$(NATIVE)' > $@
FORCE:

build/core/%.o: %.c Makefile | build/need-build
	@mkdir -p $(@D)
	@echo 'CC $<'; $(CC) $(FLAGS) $(OPT) -c $< -o $@

build/libtailbound.a: $(call core_o,build/core) build/sources
	@rm -f $@.tmp.$$$$ && ar rcs $@.tmp.$$$$ $(filter %.o,$^) && mv $@.tmp.$$$$ $@

build/pybind/_tailbound.c: pybind/build.py native/include/tailbound.h $(VENV)/installed
	@mkdir -p $(@D)
	@$(PY) pybind/build.py $@ >/dev/null && touch $@

$(SITE): build/pybind/_tailbound.c build/libtailbound.a
	@echo 'LD $@'; $(CC) $(filter-out -Werror -MMD -MP,$(FLAGS)) $(OPT) -shared \
	  -I"$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("include"))')" $^ -o $@ $(LIBS)

build/core/bench/%.o: bench/%.c Makefile | build/need-build
	@mkdir -p $(@D)
	@echo 'CC $<'; $(CC) $(FLAGS) -O2 -Ibench -c $< -o $@

$(addprefix build/bench/,$(BENCHES)): build/bench/%: build/core/bench/%.o $(patsubst %.c,build/core/%.o,$(BCOMMON)) build/libtailbound.a
	@mkdir -p $(@D)
	@$(CC) $^ -o $@ $(LIBS)

# One command builds plugins, here and for those who installed a wheel; the perf binaries look in build/plugins.
SHARED := $(wildcard native/plugins/common/*.[ch]) native/links/link.h native/links/plugin.h native/links/peer_table.h \
  native/links/peer_addr.h native/ether/bytes.h $(wildcard native/links/regions.[ch] native/links/events.[ch]) transport/tailbound/build_plugin.py
build/plugins/dpdk: $(wildcard native/plugins/dpdk/*.[ch] native/ether/*.[ch])
build/plugins/verbs: $(wildcard native/plugins/verbs/*.[ch])
build/plugins/dpdk build/plugins/verbs: build/plugins/%: $(SHARED) $(SITE) $(VENV)/editable | build/need-%
	@mkdir -p build
	@CC='$(CC)' $(VENV)/bin/tailbound build-plugin $* --to $(PLUGINS)
	@[ -L build/plugins ] || { rm -rf build/plugins && ln -s ../$(PLUGINS) build/plugins; }
	@touch $@

plugins: build/plugins/dpdk build/plugins/verbs

build: $(SITE) $(VENV)/editable $(addprefix build/bench/,$(BENCHES))

demo: $(SITE) $(VENV)/editable
	@$(VENV)/bin/tailbound demo
	@echo 'the tool is $(VENV)/bin/tailbound (or: . $(VENV)/bin/activate), e.g. $(VENV)/bin/tailbound launch -n 4 train.py'

# ---- tests ----------------------------------------------------------------------------------------------------------------

# The code of a test runs for milliseconds and compiles for a second: not optimised, for a quarter. Explorers compute.
build/san/tests/native/test_%.o: SAN := $(subst -O1,-O0,$(SAN))
$(patsubst %,build/san/tests/native/%.o,test_explore test_explore_groups test_explore_view test_hadamard test_relay): SAN := $(SAN)

build/san/%.o: %.c Makefile | build/need-test
	@mkdir -p $(@D)
	@echo 'CC (address, undefined) $<'; $(CC) $(FLAGS) $(SAN) -Itests/native -c $< -o $@

$(addprefix build/san/,$(CTESTS)): build/san/%: build/san/tests/native/%.o $(call core_o,build/san) $(patsubst %.c,build/san/%.o,$(CHELP)) build/sources
	@$(CC) $(SAN) $(filter %.o,$^) -o $@ -lcmocka $(LIBS)

build/tsan/%.o: %.c Makefile | build/need-test
	@mkdir -p $(@D)
	@echo 'CC (thread) $<'; $(CC) $(FLAGS) $(TSAN) -Itests/native -c $< -o $@

$(addprefix build/tsan/,$(TSAN_HERE)): build/tsan/%: build/tsan/tests/native/%.o $(call core_o,build/tsan) $(patsubst %.c,build/tsan/%.o,$(CHELP)) build/sources
	@$(CC) $(TSAN) $(filter %.o,$^) -o $@ -lcmocka $(LIBS)

build/san-dpdk/%.o: %.c Makefile | build/need-test build/need-dpdk
	@mkdir -p $(@D)
	@echo 'CC (address, undefined; DPDK) $<'; $(CC) $(FLAGS) $(SAN) -Itests/native -Itests/dpdk $(dpdk_cflags) -c $< -o $@

$(addprefix build/san/dpdk/,$(DPDK_TESTS) $(DPDK_TOOLS)): build/san/dpdk/%: build/san-dpdk/tests/dpdk/%.o $(call core_o,build/san) \
  $(patsubst %.c,build/san-dpdk/%.o,$(DPDK)) $(patsubst %.c,build/san/%.o,$(CHELP)) build/sources
	@mkdir -p $(@D)
	@$(CC) $(SAN) $(filter %.o,$^) -o $@ -lcmocka $(dpdk_libs) $(LIBS)

build/san/dpdk/rehearse: native/plugins/dpdk/rehearse.c Makefile | build/need-test build/need-dpdk
	@mkdir -p $(@D)
	@$(CC) $(filter-out -MMD -MP,$(FLAGS)) -O2 $(dpdk_cflags) $< -o $@ $(dpdk_libs)

dpdk-tests: $(addprefix build/san/dpdk/,$(DPDK_TESTS) $(DPDK_TOOLS) rehearse)

build/san-verbs/%.o: %.c Makefile | build/need-test build/need-verbs
	@mkdir -p $(@D)
	@echo 'CC (address, undefined; verbs) $<'; $(CC) $(FLAGS) $(SAN) -Itests/native -Itests/verbs -c $< -o $@

$(addprefix build/san/verbs/,$(VERBS_TESTS) $(VERBS_TOOLS)): build/san/verbs/%: build/san-verbs/tests/verbs/%.o $(call core_o,build/san) \
  $(patsubst %.c,build/san-verbs/%.o,$(VERBS)) $(patsubst %.c,build/san/%.o,$(CHELP)) build/sources
	@mkdir -p $(@D)
	@$(CC) $(SAN) $(filter %.o,$^) -o $@ -lcmocka -libverbs $(LIBS)

verbs-tests: $(addprefix build/san/verbs/,$(VERBS_TESTS) $(VERBS_TOOLS))

native-tests: $(addprefix build/san/,$(CTESTS)) $(addprefix build/tsan/,$(TSAN_HERE))

# PYTEST and ONLY narrow a run: make test ONLY='build/san/test_wire' PYTEST='tests/transport -k buffers'
test: build native-tests dpdk-tests verbs-tests plugins
	@$(PY) scripts/run_tests.py --limit $(TEST_LIMIT) --pytest '$(or $(PYTEST),tests)' \
	  $(or $(ONLY),$(addprefix build/san/dpdk/,$(DPDK_TESTS)) $(addprefix build/san/verbs/,$(filter-out $(VERBS_DEVICE_TESTS),$(VERBS_TESTS))) $(addprefix build/san/,$(CTESTS)) $(addprefix build/tsan/,$(TSAN_HERE)))

lint: $(VENV)/installed
	@$(PY) scripts/run_tests.py --lint-only

bench: build
	@sh scripts/bench.sh build/bench

# One script a claim, a core each, the longest first (bench/NOTES.md has their seconds); all of them take --quick. Without
# the options below the contract takes as long as all others together, and a thousand ranks in groups and flat minutes.
SIM_LONGEST := $(patsubst %,bench/%.py,train_digits_sim sim_deadline sim_hadamard sim_incast sim_groups sim_scale sim_view sim_agree)
SIM_SCRIPTS := $(shell grep -l __main__ bench/sim_*.py bench/train_*_sim.py)
SIM_SCRIPTS := $(filter $(SIM_SCRIPTS),$(SIM_LONGEST)) $(filter-out $(SIM_LONGEST),$(SIM_SCRIPTS))
$(patsubst bench/%.py,build/bench-sim/%.txt,$(SIM_SCRIPTS)): build/bench-sim/%.txt: bench/%.py FORCE $(SITE) $(VENV)/editable
	@mkdir -p build/bench-sim
	@a=; if grep -q png $<; then a="--png $(@:.txt=.png)"; fi; \
	  case $< in *sim_contract*) a='--operations 1000';; *sim_deadline*) a="$$a --rounds 100";; *sim_groups*|*sim_scale*) a="$$a --ranks 8,64,256";; esac; \
	  OPENBLAS_NUM_THREADS=1 $(PY) $< $$a > $@ 2>&1 || { cat $@; echo "$< failed"; exit 1; }; echo; echo "$< -> $@"; cat $@

bench-sim: $(patsubst bench/%.py,build/bench-sim/%.txt,$(SIM_SCRIPTS))

# ---- fuzzing --------------------------------------------------------------------------------------------------------------

build/fuzz/%.o: %.c Makefile | build/need-fuzz
	@mkdir -p $(@D)
	@$(CLANG) $(FLAGS) $(FUZZ) -Itests/native -c $< -o $@

$(addprefix build/fuzz/,$(FUZZERS)): build/fuzz/%: build/fuzz/tests/native/%.o $(call core_o,build/fuzz) build/sources
	@$(CLANG) $(FUZZ) -fsanitize=fuzzer $(filter %.o,$^) -o $@ $(LIBS)

fuzz: $(addprefix build/fuzz/,$(FUZZERS))
	@set -e; for f in $(FUZZERS); do mkdir -p build/corpus/$$f; echo "fuzzing $$f for $(FUZZ_SECONDS) s"; \
	  build/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -len_control=0 -print_final_stats=1 -artifact_prefix=build/corpus/ \
	  build/corpus/$$f; done

clean:
	rm -rf build dist *.egg-info transport/*.egg-info $(PLUGINS) transport/tailbound/_tailbound*.so $(VENV)/editable

-include $(shell find build -name '*.d' 2>/dev/null)
