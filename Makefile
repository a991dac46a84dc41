# SPDX-License-Identifier: Apache-2.0
# weft: `make help` lists the targets.

CC       ?= gcc
PREFIX   ?= /usr/local
DESTDIR  ?=
SANITIZE ?=

# Not there for root who has come by `su` without `-`: modprobe, losetup, mkfs.
export PATH := $(PATH):/usr/sbin:/sbin

# Each sanitizer has its own objects: build/, build/address,undefined/, build/thread/.
BUILD := build$(if $(SANITIZE),/$(SANITIZE))

# Sanitizers' objects are run a few times and built often.
CFLAGS   ?= $(if $(SANITIZE),-O1 -g1,-O2 -g)
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
            -Wpointer-arith -Wwrite-strings -Wvla -Wno-unused-parameter
FUSE_CFLAGS := $(shell pkg-config --cflags fuse3 2>/dev/null)
# What gcc says of code that the sanitizers have put in.
NO_WARNINGS := $(if $(findstring thread,$(SANITIZE)),-Wno-tsan) $(if $(findstring undefined,$(SANITIZE)),-Wno-nonnull $(if $(findstring clang,$(CC)),,-Wno-format-overflow))
# _FORTIFY_SOURCE needs optimization, and is the sanitizers' work where they are.
OPTIMIZED := $(filter-out -O0,$(filter -O%,$(CFLAGS)))
HARDENED_CFLAGS := -fPIE $(if $(SANITIZE),,-fstack-protector-strong $(if $(OPTIMIZED),-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2))
HARDENED_LDFLAGS := -pie -Wl,-z,relro,-z,now
ALL_CFLAGS := -std=gnu17 -D_GNU_SOURCE -I. $(WARNINGS) -fno-strict-aliasing -fno-omit-frame-pointer \
            $(HARDENED_CFLAGS) $(CFLAGS) $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $(NO_WARNINGS) $(FUSE_CFLAGS)
ALL_LDFLAGS := $(HARDENED_LDFLAGS) $(LDFLAGS) $(if $(SANITIZE),-fsanitize=$(SANITIZE))

# The layers, lowest first; a layer is a folder and calls only those before it.
LAYERS := engine/common engine/rt engine/net engine/cluster engine/store engine/log engine/coherence \
          engine/coherence/protocol engine/coherence/driver engine/cache engine/space engine/tree \
          engine/volume engine/node mkfs/fsck fs/kcache fs/ops fs
LIB_ENGINE := -luring -lrdmacm -libverbs -lisal -linih -lssl -lcrypto -lpthread -lm
LIB_FS     := -lcap-ng -lfuse3 -ljansson -lmicrohttpd
LIB_TOOLS  := -lblkid -lsmartcols -lncursesw -ltinfo

obj = $(patsubst %.c,$(BUILD)/%.o,$(1))
layer_sources = $(filter-out %_main.c,$(wildcard $(1)/*.c))
layer_lib = $(BUILD)/lib/lib$(subst /,-,$(1)).a
# Archives from the top layer down, as the linker wants them.
LIBS := $(foreach l,$(LAYERS),$(call layer_lib,$(l)))
reverse = $(if $(1),$(call reverse,$(wordlist 2,$(words $(1)),$(1))) $(firstword $(1)))
LINK_LIBS := $(call reverse,$(LIBS))

PROGRAMS := $(patsubst %,$(BUILD)/%,weft weftd mkfs.weft fsck.weft)
# Without code: the same for all sanitizers.
MAN_PAGES := $(patsubst packaging/man/%.scd,build/man/%,$(wildcard packaging/man/*.scd))
COMPLETIONS := build/completion/weft build/completion/_weft
UNIT_TESTS := $(patsubst tests/unit/%.c,$(BUILD)/tests/unit/%,$(wildcard tests/unit/*_test.c))
SIM_TESTS := $(patsubst tests/sim/%.c,$(BUILD)/tests/sim/%,$(wildcard tests/sim/*_test.c))

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.PHONY: all help clean
all: $(PROGRAMS) $(MAN_PAGES) $(if $(SANITIZE),,$(COMPLETIONS)) ## build weft, weftd, mkfs.weft, fsck.weft, man pages (what `make` alone does)

define layer_rule
$$(call layer_lib,$(1)): $$(call obj,$$(call layer_sources,$(1)))
	@mkdir -p $$(@D)
	@rm -f $$@
	@ar rcs $$@ $$^
endef
$(foreach l,$(LAYERS),$(eval $(call layer_rule,$(l))))

# Files that an object takes in as they are.
$(BUILD)/fs/page_files.o: $(wildcard fs/page/page.*)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

# ---- programs -----------------------------------------------------------------
# weft is everything in tools/; the others are one main each over the layers.
WEFT_OBJS := $(call obj,$(wildcard tools/*.c))
main_weftd := fs/weftd_main
main_mkfs.weft := mkfs/mkfs_main
main_fsck.weft := mkfs/fsck_main

$(BUILD)/weft: $(WEFT_OBJS) $(LIBS)
	@echo "LD $@"
	@$(CC) $(ALL_CFLAGS) $(WEFT_OBJS) $(LINK_LIBS) -o $@ $(ALL_LDFLAGS) $(LIB_FS) $(LIB_ENGINE) $(LIB_TOOLS)

define program_rule
$(BUILD)/$(1): $(BUILD)/$(main_$(1)).o $(LIBS)
	@echo "LD $$@"
	@$$(CC) $$(ALL_CFLAGS) $$< $$(LINK_LIBS) -o $$@ $$(ALL_LDFLAGS) $$(LIB_FS) $$(LIB_ENGINE) $(LIB_$(1))
endef
LIB_mkfs.weft := -lblkid
$(foreach p,weftd mkfs.weft fsck.weft,$(eval $(call program_rule,$(p))))

# ---- man pages ----------------------------------------------------------------
# The version is that of the programs, the date that of the newest entry in the package's changelog.
VERSION = $(shell sed -n 's/^\#define WEFT_VERSION "\(.*\)"$$/\1/p' engine/common/text.h)
RELEASED = $(shell date -d "$$(sed -n '/^ -- /{s/.*>  //p;q}' packaging/debian/changelog)" +%s)
build/man/%: packaging/man/%.scd packaging/debian/changelog
	@mkdir -p $(@D)
	@SOURCE_DATE_EPOCH=$(RELEASED) scdoc <$< >$@

# ---- completion ----------------------------------------------------------------
# Of bash and zsh: from the help texts, so the programs must run on the machine that builds them.
build/completion/table: $(PROGRAMS) packaging/completion/table packaging/completion/table.awk
	@mkdir -p $(@D)
	@packaging/completion/table $(BUILD) >$@
build/completion/weft: packaging/completion/weft.bash.in
build/completion/_weft: packaging/completion/_weft.in
$(COMPLETIONS): build/completion/table packaging/completion/fill.awk
	@awk -v table=$< -f packaging/completion/fill.awk $(filter %.in,$^) >$@

# ---- tests --------------------------------------------------------------------
# A unit test is named after its layer, tests/unit/LAYER_what_test.c, and links only the
# layers up to that one.
layer_common     := engine/common
layer_rt         := $(layer_common) engine/rt
layer_net        := $(layer_rt) engine/net
layer_cluster    := $(layer_rt) engine/cluster
layer_store      := $(layer_rt) engine/store
layer_log        := $(layer_store) engine/log
layer_coherence  := $(layer_log) engine/net engine/cluster engine/coherence \
                    engine/coherence/protocol engine/coherence/driver
layer_cache      := $(layer_coherence) engine/cache
layer_space      := $(layer_cache) engine/space
layer_tree       := $(layer_space) engine/tree
layer_volume     := $(layer_tree) engine/volume
layer_node       := $(layer_volume) engine/node
layer_fsck       := $(layer_node) mkfs/fsck
layer_kcache     := $(layer_fsck) fs/kcache
layer_ops        := $(layer_kcache) fs/ops
layer_fs         := $(layer_ops) fs
test_libs = $(call reverse,$(foreach l,$(layer_$(firstword $(subst _, ,$(1)))),$(call layer_lib,$(l))))

# The world of tests of several nodes: a test links the members that it uses.
WORLD_LIB := $(BUILD)/lib/libtests-world.a
$(WORLD_LIB): $(call obj,$(wildcard tests/world/*.c))
	@mkdir -p $(@D)
	@rm -f $@
	@ar rcs $@ $^

.SECONDEXPANSION:
.SECONDARY:
$(BUILD)/tests/unit/%_test: $(BUILD)/tests/unit/%_test.o $(WORLD_LIB) $$(call test_libs,$$*)
	@echo "LD $@"
	@$(CC) $(ALL_CFLAGS) $< $(WORLD_LIB) $(call test_libs,$*) -o $@ $(ALL_LDFLAGS) -lcmocka \
		$(if $(filter fs_%,$*),$(LIB_FS)) $(LIB_ENGINE)

# Simulated tests share what is in tests/sim/ and is no test.
SIM_OBJS := $(call obj,$(filter-out %_test.c,$(wildcard tests/sim/*.c))) $(WORLD_LIB)
$(BUILD)/tests/sim/%_test: $(BUILD)/tests/sim/%_test.o $(SIM_OBJS) $(call test_libs,ops)
	@echo "LD $@"
	@$(CC) $(ALL_CFLAGS) $< $(SIM_OBJS) $(call test_libs,ops) -o $@ $(ALL_LDFLAGS) -lcmocka $(LIB_ENGINE)

# Damaged images: made, checked, repaired, probed.
IMAGE_OBJS := $(call obj,$(wildcard tests/images/*.c))
$(BUILD)/tests/images/make_image: $(IMAGE_OBJS) $(call test_libs,ops)
	@echo "LD $@"
	@$(CC) $(ALL_CFLAGS) $(IMAGE_OBJS) $(call test_libs,ops) -o $@ $(ALL_LDFLAGS) $(LIB_ENGINE)

.PHONY: images
images: $(BUILD)/tests/images/make_image $(BUILD)/fsck.weft $(BUILD)/weft ## check fsck on damaged images
	@BIN=$(BUILD) tests/images/run

# Programs of their own that the mount tests use.
HELPER_PROGRAMS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/mount/*.c))
$(BUILD)/tests/mount/%: tests/mount/%.c
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(ALL_CFLAGS) $< -o $@ $(ALL_LDFLAGS) -lpthread

# What they have weftd begin with (LD_PRELOAD).
PRELOADS := $(patsubst %.c,$(BUILD)/%.so,$(wildcard tests/mount/preload/*.c))
$(BUILD)/tests/mount/preload/%.so: tests/mount/preload/%.c
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(ALL_CFLAGS) -fPIC -shared $< -o $@ $(filter-out -pie,$(ALL_LDFLAGS))

# Larger ones have a folder, tests/mount/NAME/.
MOUNT_PROGRAMS := $(patsubst %,$(BUILD)/tests/mount/%/run,posix fsx)
define mount_program_rule
$(BUILD)/tests/mount/$(1)/run: $$(call obj,$$(wildcard tests/mount/$(1)/*.c))
	@echo "LD $$@"
	@$$(CC) $$(ALL_CFLAGS) $$^ -o $$@ $$(ALL_LDFLAGS) -lcmocka -lpthread
endef
$(foreach p,posix fsx,$(eval $(call mount_program_rule,$(p))))

# The verbs transport on a device (tests/rdma/run).
$(BUILD)/tests/rdma/verbs_test: $(BUILD)/tests/rdma/verbs_test.o $(call test_libs,net)
	@echo "LD $@"
	@$(CC) $(ALL_CFLAGS) $< $(call test_libs,net) -o $@ $(ALL_LDFLAGS) -lcmocka $(LIB_ENGINE)

# SEND or mailboxes, without weft; run by hand, in the guest or with a card (docs/benchmarks.md).
$(BUILD)/tests/rdma/ways_bench: $(BUILD)/tests/rdma/ways_bench.o
	@echo "LD $@"
	@$(CC) $(ALL_CFLAGS) $< -o $@ $(ALL_LDFLAGS) -lrdmacm -libverbs -lpthread

# What the network is measured with.
$(BUILD)/tests/bench/netbench: $(BUILD)/tests/bench/netbench.o $(call test_libs,net)
	@echo "LD $@"
	@$(CC) $(ALL_CFLAGS) $< $(call test_libs,net) -o $@ $(ALL_LDFLAGS) $(LIB_ENGINE)

# libFuzzer is clang's; `make fuzz` and `make check` build these under build/fuzz.
FUZZERS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/*_fuzz.c))
$(BUILD)/tests/fuzz/%_fuzz: $(BUILD)/tests/fuzz/%_fuzz.o $(call test_libs,volume)
	@echo "LD $@"
	@$(CC) $(ALL_CFLAGS) $< $(call test_libs,volume) -o $@ $(ALL_LDFLAGS) -fsanitize=fuzzer $(LIB_ENGINE)

# Benchmarks of single layers, for by hand (docs/benchmarks.md).
BENCH_PROGRAMS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/*_bench.c))
$(BUILD)/tests/bench/%_bench: $(BUILD)/tests/bench/%_bench.o $(WORLD_LIB) $(call test_libs,ops)
	@echo "LD $@"
	@$(CC) $(ALL_CFLAGS) $< $(WORLD_LIB) $(call test_libs,ops) -o $@ $(ALL_LDFLAGS) -lcmocka $(LIB_ENGINE)

.PHONY: unit tests benches fuzzers check check-rdma model soak fuzz
benches: $(BENCH_PROGRAMS) ## build the benchmarks of single layers
tests: all $(UNIT_TESTS) $(SIM_TESTS) $(HELPER_PROGRAMS) $(PRELOADS) $(MOUNT_PROGRAMS) $(BENCH_PROGRAMS) \
	$(BUILD)/tests/images/make_image $(BUILD)/tests/rdma/verbs_test $(BUILD)/tests/rdma/ways_bench
fuzzers: $(FUZZERS)

# What `sudo make` builds belongs to whom the tree belongs, or `make` without sudo could not go on.
# Ends a recipe's line, and with the exit code of what came before.
GIVE_BACK = rc=$$?; [ "$$(id -u)" != 0 ] || chown -R --reference=Makefile build; exit $$rc

model: ## check the page protocol exhaustively, with spin (ten minutes)
	@packaging/install-deps.sh --check
	@tests/model/run; $(GIVE_BACK)

check-rdma: ## weft over RDMA, in guests with Soft-RoCE (some minutes; fetches a kernel once)
	@packaging/install-deps.sh --check
	@$(MAKE) --no-print-directory -j$(JOBS) tests
	@tests/run TEST_TIMEOUT=2400 RDMA_GUESTS=one tests/rdma/run RDMA_GUESTS=two tests/rdma/run; $(GIVE_BACK)

unit: $(UNIT_TESTS) ## build and run the unit tests
	@tests/run -j $(JOBS) $(UNIT_TESTS)

# What `make check` runs is in tests/suites; docs/testing.md explains each kind.
JOBS := $(shell nproc)
MAKE_TREE := $(MAKE) --no-print-directory -j$(JOBS)
MAKE_ASAN := $(MAKE_TREE) SANITIZE=address,undefined
MAKE_TSAN := $(MAKE_TREE) SANITIZE=thread
MAKE_FUZZ := $(MAKE_TREE) CC=clang BUILD=build/fuzz SANITIZE=fuzzer-no-link,address,undefined

# Of the sanitizers' trees only what is run is built.
check: ## build and run all tests (needs root for the mounts)
	@packaging/install-deps.sh --check
	@asan=$$(tests/list-suites --programs address,undefined) && \
	tsan=$$(tests/list-suites --programs thread) && \
	$(MAKE_TREE) tests && \
	$(MAKE_ASAN) all $$asan build/address,undefined/tests/images/make_image && \
	$(MAKE_TSAN) $$tsan && \
	$(MAKE_FUZZ) fuzzers && \
	tests/run --check $(JOBS); \
	$(GIVE_BACK)

MINUTES := 60
soak: ## power cuts and clusters from new seeds, and kills, for MINUTES= (needs root)
	@packaging/install-deps.sh --check
	@$(MAKE) --no-print-directory -j$(JOBS) tests
	@tests/soak $(MINUTES); $(GIVE_BACK)

fuzz: ## fuzz each reader for MINUTES= and keep what is new in tests/fuzz/corpus
	@$(MAKE_FUZZ) fuzzers
	@tests/fuzz/campaign $(MINUTES) $$(tests/list-suites --programs fuzz)

.PHONY: picture
picture: ## make docs/page.png, after MINUTES= of work on three nodes (needs root)
	@packaging/install-deps.sh --check
	@$(MAKE_TREE) all
	@tests/picture $(MINUTES) docs/page.png; $(GIVE_BACK)

.PHONY: bench
bench: ## measure against ext4, passthrough_ll and other trees (needs root; ROWS= BENCH_FLAGS=)
	@packaging/install-deps.sh --bench
	@$(MAKE) --no-print-directory -j$(JOBS) all $(patsubst %,$(BUILD)/tests/bench/%,netbench nodes_bench ycsb_bench)
	@tests/bench/run --bin $(BUILD) $(if $(ROWS),--only $(ROWS)) $(BENCH_FLAGS); $(GIVE_BACK)

# ---- trying it, installing it ---------------------------------------------------
.PHONY: deps up down install uninstall format lint layers
deps: ## install what is missing to build and run (needs root)
	@packaging/install-deps.sh

# A make of its own builds, since what deps installs changes the flags.
up: deps ## build, make a volume of NODES=3 nodes, mount it on each (needs root; DIR= SIZE= STORES=; NODES=1 STORE=)
	@$(MAKE) --no-print-directory -j$$(nproc) all; $(GIVE_BACK)
	@BIN=$(BUILD) packaging/up up

down: ## unmount it again (PURGE=1 also removes the volume)
	@BIN=$(BUILD) packaging/up down

SBIN := $(DESTDIR)$(PREFIX)/sbin
MAN8 := $(DESTDIR)$(PREFIX)/share/man/man8
UDEV := $(DESTDIR)$(PREFIX)/lib/udev/rules.d
UNITS := $(DESTDIR)$(PREFIX)/lib/systemd/system
GRAFANA := $(DESTDIR)$(PREFIX)/share/weft/grafana
BASH_COMPLETION := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
# Debian's zsh looks here.
ZSH_COMPLETION := $(DESTDIR)$(PREFIX)/share/zsh/$(if $(filter /usr,$(PREFIX)),vendor-completions,site-functions)
# mount(8) and umount(8) look for their helpers in /sbin only, fsck(8) and mkfs(8) also there. On
# systems of today /sbin is a link to /usr/sbin. A package for PREFIX=/usr must have nothing in /sbin:
# a link there, to a program in /usr/sbin, would replace it.
FUSE_HELPERS := mount.fuse.weft umount.fuse.weft
HELPERS := mount.weft $(FUSE_HELPERS)
HELPER_DIR := $(DESTDIR)$(if $(filter /usr,$(PREFIX)),/usr)/sbin
install: all ## install under DESTDIR and PREFIX, the helpers of mount(8) in /sbin, with PREFIX=/usr in /usr/sbin
	@$(GIVE_BACK)
	install -d $(DESTDIR)$(PREFIX)/bin $(SBIN) $(MAN8) $(UDEV) $(UNITS) $(BASH_COMPLETION) $(ZSH_COMPLETION) $(GRAFANA) \
		$(HELPER_DIR)
	install $(BUILD)/weft $(DESTDIR)$(PREFIX)/bin/
	install $(filter-out $(BUILD)/weft,$(PROGRAMS)) $(SBIN)/
	install -m 644 $(MAN_PAGES) $(MAN8)/
	for h in $(FUSE_HELPERS); do echo ".so man8/mount.weft.8" >$(MAN8)/$$h.8; done
	sed 's|@BIN@|$(PREFIX)/bin|' packaging/udev/64-weft.rules >$(UDEV)/64-weft.rules
	sed 's|@SBIN@|$(PREFIX)/sbin|' packaging/systemd/weft@.service.in >$(UNITS)/weft@.service
	install -m 644 packaging/grafana/* $(GRAFANA)/
	install -m 644 build/completion/weft $(BASH_COMPLETION)/
	install -m 644 build/completion/_weft $(ZSH_COMPLETION)/
	for p in weftd mkfs.weft fsck.weft; do ln -sf weft $(BASH_COMPLETION)/$$p; done
	for h in $(HELPERS); do ln -sf $(PREFIX)/bin/weft $(HELPER_DIR)/$$h; done
	for p in mkfs fsck; do [ $(SBIN) = $(HELPER_DIR) ] || \
		ln -sf $(PREFIX)/sbin/$$p.weft $(HELPER_DIR)/$$p.weft; done

uninstall: ## remove what install put there
	rm -f $(UDEV)/64-weft.rules $(UNITS)/weft@.service $(ZSH_COMPLETION)/_weft
	rm -rf $(GRAFANA)
	rm -f $(addprefix $(BASH_COMPLETION)/,weft weftd mkfs.weft fsck.weft)
	rm -f $(DESTDIR)$(PREFIX)/bin/weft $(addprefix $(SBIN)/,weftd mkfs.weft fsck.weft)
	rm -f $(addprefix $(MAN8)/,$(notdir $(MAN_PAGES)) $(addsuffix .8,$(FUSE_HELPERS)))
	rm -f $(addprefix $(HELPER_DIR)/,$(HELPERS) mkfs.weft fsck.weft)

# The tree is not built again: debian/rules installs from it.
DEB := build/deb
.PHONY: deb
deb: ## build the Debian packages weft and weft-dbgsym, in build/deb
	@packaging/install-deps.sh --deb
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@rm -rf $(DEB)
	@mkdir -p $(DEB)/weft
	@cp -r packaging/debian $(DEB)/weft
	@sed -i 's/@VERSION@/$(VERSION)/' $(DEB)/weft/debian/changelog
	@(cd $(DEB)/weft && TREE=$(CURDIR) env -u MAKEFLAGS -u MAKELEVEL dpkg-buildpackage -b -nc -us -uc); $(GIVE_BACK)

SOURCES = $(foreach d,$(LAYERS) mkfs tools,$(wildcard $(d)/*.[ch])) $(wildcard tests/*/*.[ch] tests/*/*/*.[ch])
format: ## clang-format all sources (needs clang-format; FILES= some)
	clang-format -i $(or $(FILES),$(SOURCES))

lint: layers ## clang-tidy and the layer check (needs clang-tidy; FILES= some)
	clang-tidy --quiet --warnings-as-errors='*' \
		$(or $(FILES),$(filter %.c,$(SOURCES))) -- $(ALL_CFLAGS)

layers: ## check that the layers keep apart
	@tests/check-layers

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

clean: ## remove build/
	rm -rf build

-include $(shell find $(BUILD) -type f -name '*.d' 2>/dev/null)
