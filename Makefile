# Kubeveil. `make` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
OUT := out
GO ?= go
# The release of Linux that virtual machines boot, such as 6.12; empty is Debian's default.
export KUBEVEIL_VM_KERNEL := $(KERNEL)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

.PHONY: deps
deps: ## install the missing Debian packages that the tests need
	@hack/install-deps.sh

.PHONY: build
build: ## build the programs and the reference CNI plugins into out/bin
	@hack/build.sh

.PHONY: images
images: ## container images as OCI archives: out/images/kubeveil.tar, and kubeveil-tools.tar for suites and veilctl connectivity
	@$(GO) run ./hack/image --out $(OUT)/images/kubeveil.tar
	@$(GO) run ./hack/image --image kubeveil-tools --out $(OUT)/images/kubeveil-tools.tar

.PHONY: image-csi
image-csi: deps ## container image of the CSI driver and its side-cars: out/images/kubeveil-csi.tar (9 minutes cold)
	@$(GO) run ./hack/image --image kubeveil-csi --out $(OUT)/images/kubeveil-csi.tar

.PHONY: release
release: ## a release: out/release/VERSION (VERSION=v0.1.0 KEY=FILE NAME=registry.example/kubeveil)
	@$(GO) run ./hack/release --version '$(VERSION)' --key '$(KEY)' \
		$(if $(NAME),--name '$(NAME)')

.PHONY: test-release
test-release: ## two whole releases of this commit: equal, and checked (COLD=1: no cache for one)
	@KUBEVEIL_RELEASE=$(if $(COLD),cold,1) $(GO) test -count=1 -timeout 60m -v \
		-run '^TestTwoBuildsAreEqual$$' ./hack/release

.PHONY: kubernetes
kubernetes: ## kube-apiserver, kube-proxy and etcd for the lab: from KUBEBUILDER_ASSETS or PATH, or else built (8 minutes cold)
	@hack/build-kubernetes.sh

.PHONY: generate
generate: ## regenerate BPF objects, bindings and documentation tables
	$(GO) generate ./...

.PHONY: csi-sanity
csi-sanity: ## run csi-sanity against the CSI driver on fakes, and list passed and skipped tests
	@$(GO) test -count=1 -v -run '^TestSanity$$' ./csi/driver

.PHONY: fmt
fmt: ## format Go and C
	gofmt -w $$(git ls-files '*.go')
	. hack/versions.sh && clang-format-$$CLANG_VERSION -i $$(git ls-files 'bpf/*.c' 'bpf/*.h')

.PHONY: lint
lint: ## golangci-lint and govulncheck, pinned
	@hack/verify-lint.sh

.PHONY: verify
verify: deps ## formatting, words, documents, generated files, go.mod, lint, known vulnerabilities
	@hack/verify.sh

.PHONY: test
test: deps build kubernetes ## unit (race), root, BPF and lab tests
	@KUBEVEIL_LAB_NO_BUILD=1 hack/test.sh

.PHONY: test-unit
test-unit: ## the tests that need neither the lab nor an API server
	@hack/test.sh unit

.PHONY: test-lab
test-lab: deps build kubernetes ## the life cycle in the namespace lab, leak oracle running
	@KUBEVEIL_LAB_NO_BUILD=1 hack/test.sh lab

.PHONY: test-lab-long
test-lab-long: deps build kubernetes ## the lab with the tests that mostly wait
	@hack/build-kubernetes.sh etcd-streams
	@KUBEVEIL_LAB_NO_BUILD=1 KUBEVEIL_LAB_LONG=1 hack/test.sh lab

.PHONY: fuzz
fuzz: ## every fuzz target for 10 s each (FUZZTIME=1m for longer)
	@hack/fuzz.sh

.PHONY: demo
demo: deps $(if $(API),kubernetes) ## the main job: clear and encrypted side by side, out/demo/report.html (API=1: with an API server, services, a NetworkPolicy and a linked cluster)
	@hack/build.sh ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab demo $(if $(API),--api) --out $(OUT)/demo

.PHONY: volumetool
volumetool: ## build the program with which demonstrations and benchmarks use volumes on a machine
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(OUT)/bin/volumetool ./e2e/disk/volumetool

.PHONY: demo-storage
demo-storage: cluster-image volumetool ## an untrusted disk: what its owner can read, and which attacks are refused, out/demo-storage/report.html
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab demo storage --out $(OUT)/demo-storage

.PHONY: bench-lab
bench-lab: deps build kubernetes ## measure against bare wireguard-go and the clear network, out/bench-lab/result.json (25 minutes)
	@$(GO) run ./e2e/cmd/kvlab bench lab --out $(OUT)/bench-lab

.PHONY: bench-cluster
bench-cluster: cluster-image ## measure two virtual machines against bare WireGuard and the clear network, out/bench-cluster/report.html (an hour)
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab bench cluster --out $(OUT)/bench-cluster $(BENCH)

.PHONY: bench-storage
bench-storage: cluster-image volumetool ## measure volumes against a plain device and stock cryptsetup, out/bench-storage/report.html (25 minutes)
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab bench storage --out $(OUT)/bench-storage $(BENCH)

.PHONY: bench-service
bench-service: deps kubernetes ## measure services against kube-proxy, haproxy and the direct way, out/bench-service/report.html
	@hack/service/deps.sh
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@$(OUT)/bin/kvlab bench service --out $(OUT)/bench-service $(BENCH)

.PHONY: bench-site
bench-site: deps build kubernetes ## measure a service of another cluster, out/bench-site (35 minutes)
	@hack/site/deps.sh
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab bench site --out $(OUT)/bench-site $(BENCH)

.PHONY: bench-engine
bench-engine: build ## measure the userspace engines against each other and the clear network, out/bench-engine/report.html (26 minutes)
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@$(OUT)/bin/kvlab bench engine --out $(OUT)/bench-engine $(BENCH)

.PHONY: bench-policy
bench-policy: ## measure the cost of NetworkPolicy on a node: many rules, changes, revocation, ADD, connections, out/bench-policy/report.html
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@$(OUT)/bin/kvlab bench policy --out $(OUT)/bench-policy $(BENCH)

.PHONY: bench-scale
bench-scale: deps build kubernetes ## measure a million endpoints, out/bench-scale (30 minutes)
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@hack/build-kubernetes.sh etcd-streams
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab bench scale --out $(OUT)/bench-scale $(BENCH)

.PHONY: bench-simulator
bench-simulator: deps build kubernetes ## simulate 10,000 nodes, out/bench-simulator (an hour)
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@hack/build-kubernetes.sh etcd-streams
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab bench simulator --out $(OUT)/bench-simulator $(BENCH)

.PHONY: bench-api
bench-api: deps build kubernetes ## measure requests to API servers, and API servers that fail, out/bench-api/report.html (70 minutes)
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab bench api --out $(OUT)/bench-api $(BENCH)

.PHONY: gates
gates: ## judge all results below out/ by pkg/bench/gates.json, with the profile of their platform
	@$(GO) run ./e2e/cmd/kvlab gates --in $(OUT)

.PHONY: cluster-image
cluster-image: deps build ## build everything for the VM lab: Kubernetes, the machines' disk, the image (12 minutes cold; KERNEL=6.12 for another Linux)
	@hack/vm/deps.sh
	@hack/build-kubernetes.sh all
	@hack/build-node.sh
	@hack/vm/image.sh
	@$(GO) run ./hack/image
	@$(GO) run ./hack/image --image kubeveil-tools

.PHONY: cluster-up
cluster-up: cluster-image ## start a cluster of virtual machines and keep it (NODES=2, SERVICE_PROXY=ebpf, PROXY_MODE=ipvs)
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab up --nodes $(or $(NODES),2) $(if $(SERVICE_PROXY),--service-proxy $(SERVICE_PROXY)) $(if $(PROXY_MODE),--proxy-mode $(PROXY_MODE))

.PHONY: cluster-ssh
cluster-ssh: ## open a shell on a node of that cluster (NODE=node-1)
	@$(OUT)/bin/kvlab ssh $(or $(NODE),node-1)

.PHONY: cluster-down
cluster-down: ## end that cluster and report the frames that its leak oracle saw
	@$(OUT)/bin/kvlab down

.PHONY: conformance
conformance: cluster-image ## the upstream's own tests of networking on virtual machines, out/conformance/result.json (FOCUS=REGEXP, SERVICE_PROXY=ebpf, PROXY_MODE=iptables|ipvs, HOST_ROUTING=ebpf, POLICY=kubernetes, LIMIT=4h, PARALLEL=3)
	@hack/build-conformance.sh
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab conformance --nodes $(or $(NODES),2) $(if $(FOCUS),--focus '$(FOCUS)') $(if $(SERVICE_PROXY),--service-proxy $(SERVICE_PROXY)) $(if $(PROXY_MODE),--proxy-mode $(PROXY_MODE)) $(if $(HOST_ROUTING),--host-routing $(HOST_ROUTING)) $(if $(POLICY),--policy $(POLICY)) $(if $(LIMIT),--limit $(LIMIT)) $(if $(PARALLEL),--parallel $(PARALLEL))

.PHONY: conformance-storage
conformance-storage: cluster-image image-csi ## the upstream's own tests of storage drivers on a virtual machine, out/conformance-storage/result.json (FOCUS=REGEXP, LIMIT=4h, PARALLEL=2)
	@hack/build-conformance.sh
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab conformance --volumes --parallel $(or $(PARALLEL),2) \
		--out $(OUT)/conformance-storage \
		$(if $(FOCUS),--focus '$(FOCUS)') $(if $(LIMIT),--limit $(LIMIT))

.PHONY: conformance-policy
conformance-policy: cluster-image ## the upstream's own tests of ClusterNetworkPolicy on virtual machines, out/conformance-policy/result.json (FOCUS=REGEXP, LIMIT=4h)
	@hack/build-conformance.sh policy
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab conformance --cluster-policies \
		--nodes $(or $(NODES),2) --out $(OUT)/conformance-policy \
		$(if $(FOCUS),--focus '$(FOCUS)') $(if $(LIMIT),--limit $(LIMIT))

.PHONY: conformance-sites
conformance-sites: cluster-image ## mcs-api's own tests on two linked clusters (MCS_API=FOLDER)
	@hack/build-conformance.sh sites '$(MCS_API)'
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab conformance --sites --nodes $(or $(NODES),2) \
		--out $(OUT)/conformance-sites $(if $(FOCUS),--focus '$(FOCUS)') \
		$(if $(SERVICE_PROXY),--service-proxy $(SERVICE_PROXY)) $(if $(LIMIT),--limit $(LIMIT))

.PHONY: conformance-sites-lab
conformance-sites-lab: deps build kubernetes ## mcs-api's own tests on two linked clusters, without machines (MCS_API=FOLDER)
	@hack/build-kubernetes.sh kube-controller-manager
	@hack/build-node.sh coredns
	@hack/build-conformance.sh sites '$(MCS_API)'
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab conformance --sites --lab \
		--out $(OUT)/conformance-sites-lab $(if $(FOCUS),--focus '$(FOCUS)')

.PHONY: test-volumes
test-volumes: cluster-image ## volumes on the kernel of a virtual machine, beside stock cryptsetup (RUN=REGEXP)
	@KUBEVEIL_VM=1 KUBEVEIL_LAB_NO_BUILD=1 KUBEVEIL_DM_RUN='$(RUN)' $(GO) test -count=1 -timeout 45m -v -run '^TestVolumes$$' ./e2e/kernel

.PHONY: test-kernel
test-kernel: cluster-image ## programs and maps of guard and services, pods and policies on the kernel of a virtual machine (RUN=REGEXP, KERNEL=6.12)
	@KUBEVEIL_VM=1 KUBEVEIL_LAB_NO_BUILD=1 KUBEVEIL_KERNEL_RUN='$(RUN)' $(GO) test -count=1 -timeout 45m -v -run '^TestKernel$$' ./e2e/kernel

.PHONY: test-machines
test-machines: cluster-image ## cases that neither the lab nor e2e has: a narrow path, a cluster without kube-proxy, a machine that is suspended, idle pods of containerd (RUN=REGEXP)
	@KUBEVEIL_VM=1 KUBEVEIL_LAB_NO_BUILD=1 $(GO) test -count=1 -timeout 90m -v \
		$(if $(RUN),-run '$(RUN)') ./e2e/vm

.PHONY: test-arm64
test-arm64: ## two pods on Debian's kernel for arm64, in an emulated machine (RELEASE=FOLDER)
	@hack/vm/arm64.sh
	@KUBEVEIL_VM=1 KUBEVEIL_ARM64_RELEASE='$(abspath $(RELEASE))' \
		$(GO) test -count=1 -timeout 45m -v -run '^TestArm64$$' ./e2e/kernel

.PHONY: test-get-started
test-get-started: cluster-image ## type get-started on machines (RELEASE=FOLDER KEY=FILE.pub)
	@KUBEVEIL_VM=1 KUBEVEIL_LAB_NO_BUILD=1 \
		KUBEVEIL_GET_STARTED='$(or $(abspath $(RELEASE)),build)' \
		KUBEVEIL_GET_STARTED_KEY='$(abspath $(KEY))' \
		$(GO) test -count=1 -timeout 90m -v -run '^TestGetStarted$$' ./e2e/vm

.PHONY: power-cut
power-cut: cluster-image ## record a volume's writes on a virtual machine, and check its disk after a power cut at hundreds of moments; the log is kept in out/power-cut
	@rm -rf $(OUT)/power-cut && mkdir -p $(OUT)/power-cut
	@KUBEVEIL_VM=1 KUBEVEIL_LAB_NO_BUILD=1 KUBEVEIL_POWERCUT_LOG=$(CURDIR)/$(OUT)/power-cut/log $(GO) test -count=1 -timeout 30m -v -run '^TestRecordOfPowerCut$$' ./e2e/disk
	@KUBEVEIL_POWERCUT_LOG=$(CURDIR)/$(OUT)/power-cut/log $(GO) test -count=1 -timeout 60m -v -run '^TestPowerCut$$' ./csi/kerneltest/powercut

.PHONY: e2e
e2e: cluster-image ## correctness on virtual machines, leak oracle on the wire, out/e2e/result.json (more than half an hour; CORE=1 20 minutes, RUN=REGEXP, KERNEL=6.12)
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab test network $(if $(CORE),--core) $(if $(RUN),--run '$(RUN)')

.PHONY: e2e-releases
e2e-releases: cluster-image ## releases on virtual machines: upgrade, Helm, volumes (RELEASE=FOLDER)
	@RELEASE='$(abspath $(RELEASE))' hack/vm/releases.sh
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab test network --releases $(OUT)/releases \
		--out $(OUT)/e2e-releases $(if $(RUN),--run '$(RUN)')
	@$(if $(RUN),:,KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab test storage \
		--releases $(OUT)/releases --out $(OUT)/e2e-releases-storage \
		--run 'ext4|^delete$$|uninstall')

.PHONY: e2e-storage
e2e-storage: cluster-image image-csi ## claims of each class on a virtual machine, with attacks and failures, out/e2e-storage/result.json (RUN=REGEXP)
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/ ./e2e/cmd/kvlab ./e2e/disk/kmsplugin
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab test storage --out $(OUT)/e2e-storage $(if $(RUN),--run '$(RUN)')

.PHONY: e2e-full
e2e-full: cluster-image ## make e2e with the cases that mostly wait
	@CGO_ENABLED=0 $(GO) build -o $(OUT)/bin/kvlab ./e2e/cmd/kvlab
	@KUBEVEIL_LAB_NO_BUILD=1 $(OUT)/bin/kvlab test network --full --out $(OUT)/e2e-full

.PHONY: clean
clean: ## remove out/
	rm -rf $(OUT)
