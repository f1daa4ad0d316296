# marline. `make` alone explains the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test architecture deny survey soak release-check load smoke bench build build-lab static install clean need-build need-lab need-test need-cargo

CARGO ?= cargo
PREFIX ?= $(HOME)/.local
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/sbin:/sbin
# Where cargo builds: CARGO_TARGET_DIR and build.target-dir move it. Asked only by the targets that need it.
TARGET = $(or $(shell PATH="$(PATH)" $(CARGO) metadata --format-version 1 --no-deps 2>/dev/null \
  | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'),target)
MARLINE = $(TARGET)/release/marline
# The laboratory's program; it runs the one beside it.
LAB = $(dir $(MARLINE))marline-lab
# For `make static`: of this machine's own processor.
STATIC ?= $(shell uname -m)-unknown-linux-musl

help: ## Show this text
	@echo "marline: several network links behave as one good link"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: need-lab ## Two emulated links carry one real download at the sum of their speeds
	$(CARGO) build --profile demo --locked -p marline -p marline-lab
	@.ci/demo "$(TARGET)/demo/marline-lab"

# Most tests wait for time or for the network, so more of them than there are processors run at once.
test soak: export RUST_TEST_THREADS ?= $(shell echo $$((4 * $$(nproc))))
test: need-test ## Install what the tests need, then run all of them
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy -p marline --no-default-features --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked
	failed=; $(CARGO) test --workspace --locked --no-fail-fast || failed=1; \
	  $(CARGO) test --manifest-path fuzz/Cargo.toml --target-dir "$(TARGET)" --locked --no-fail-fast || failed=1; \
	  [ -z "$$failed" ]

architecture: need-build ## Run only the architecture test (dependencies, import cycles, unsafe code, words)
	$(CARGO) test -p marline --test architecture --locked

deny: need-build ## Check licences, sources and RustSec advisories of all dependencies (installs cargo-deny if it is missing)
	@.ci/deny "$(abspath $(TARGET))/tools"

survey: need-build ## Play the policies through thousands of drawn histories and links (long; not in CI, which plays fixed seeds)
	$(CARGO) test --release --locked -p marline-sim survey -- --ignored --nocapture

soak: need-test ## Run the checks that take long: mixed batches, long outages, players, every client at a LAN (root; half an hour)
	@.ci/need chromium:chromium
	$(CARGO) test --locked -p marline --test get mixed -- --ignored --nocapture
	$(CARGO) test --locked -p marline-paths --lib data_flows_again -- --ignored --nocapture
	$(CARGO) test --locked -p marline --test proxy players -- --ignored --nocapture
	$(CARGO) test --locked -p marline --test hosts returning_links -- --ignored --nocapture
	$(CARGO) test --locked -p marline --test hosts unusual_links -- --ignored --nocapture
	$(CARGO) test --locked -p marline --test hosts other_clients -- --ignored --nocapture

release-check: deny soak static ## Check what a release needs beyond `make test`: dependencies, long outages, the build for a small box (an hour)

load: need-test build ## Put the fleet's service and a relay under load, and print what they bear (long; decides no test)
	$(CARGO) test --release --locked -p marline-fleet --test service heartbeats -- --ignored --nocapture
	$(CARGO) test --release --locked -p marline-fleet --test service come_back -- --ignored --nocapture
	MARLINE="$(abspath $(MARLINE))" $(CARGO) test --release --locked -p marline-fleet --test tunnels -- --ignored --nocapture load

# With MARLINE=FILE that program and the laboratory beside it are run, and none is built.
smoke: need-lab $(if $(filter command line,$(origin MARLINE)),,build-lab) ## Run the programs themselves, small: what CI does after the tests
	"$(MARLINE)" --version
	"$(MARLINE)" links
	"$(LAB)" demo --quick --page "$(TARGET)/demo.html"
	"$(LAB)" demo live --seconds 10
	"$(LAB)" reproduce thesis --quick
	"$(LAB)" reproduce greenbag --quick
	"$(LAB)" reproduce emptcp --quick
	"$(LAB)" reproduce bass --sim --quick
	"$(LAB)" reproduce bass --quick --case X-upload

bench: need-lab build-lab ## Print the tables of speed against curl and aria2 (long; decides no test)
	@.ci/need aria2c:aria2 haproxy:haproxy
	"$(LAB)" bench

build: need-build ## Build the program into target/release/marline (or below CARGO_TARGET_DIR)
	$(CARGO) build --release --locked -p marline

build-lab: need-build ## Build marline and the laboratory, target/release/marline-lab
	$(CARGO) build --release --locked -p marline -p marline-lab

static: need-build ## Build one file for a small box: no C library; print where it is and its size
	@.ci/need musl-gcc:musl-tools
	@rustup target add $(STATIC) >/dev/null 2>&1 || [ -d "$$(rustc --print target-libdir --target $(STATIC))" ] || { \
	  echo "Rust's library for $(STATIC) is missing: rustup target add $(STATIC), or this system's package of it" >&2; exit 1; }
	$(CARGO) build --release --locked -p marline --no-default-features --features fleet --target $(STATIC)
	@ls -l "$(TARGET)/$(STATIC)/release/marline" | awk '{ printf "%s: %.1f MB\n", $$NF, $$5 / 1e6 }'

install: build ## Put the program into ~/.local/bin (PREFIX=/usr/local for everybody)
	install -Dm755 "$(MARLINE)" "$(PREFIX)/bin/marline"

clean: ## Remove what was built
	$(CARGO) clean

need-cargo:
	@command -v $(CARGO) >/dev/null || { \
	  echo "Rust is missing: install rustc and cargo 1.88 or newer, see https://www.rust-lang.org/tools/install" >&2; exit 1; }

# A C compiler builds the TLS library's assembly; nothing else is needed to build.
need-build: need-cargo
	@.ci/need cc:gcc ld:binutils $$([ -e /usr/include/stdio.h ] || echo no-libc-headers:libc6-dev)

need-lab: need-build
	@.ci/need nginx:nginx curl:curl

# What `lab demo live` plays with; nginx's module is no program.
.PHONY: need-live
smoke bench need-test: need-live
need-live: need-lab
	@.ci/need ffmpeg:ffmpeg socat:socat \
	  $$(ls /usr/lib*/nginx/modules/ngx_rtmp_module.so >/dev/null 2>&1 || echo no-rtmp-module:libnginx-mod-rtmp)

need-test: need-lab
	@.ci/need aria2c:aria2 dnsmasq:dnsmasq-base dbus-daemon:dbus openssl:openssl ip:iproute2 mpv:mpv python3:python3 ffmpeg:ffmpeg redis-server:redis-server redis-cli:redis-tools nft:nftables iptables:iptables clang:clang shellcheck:shellcheck mkfs.ext4:e2fsprogs mkfs.vfat:dosfstools tinyproxy:tinyproxy-bin microsocks:microsocks
	@$(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@$(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy
