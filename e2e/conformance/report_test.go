package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// allSpecs returns the networking specs of the version that is run.
func allSpecs(t *testing.T) []string {
	t.Helper()
	b := filetest.Read(t, "testdata/specs.txt")
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// labFacts are the facts of the VM lab.
var labFacts = Facts{Nodes: 2, Others: 1, DNS: true, Emulated: true}

func TestEveryReasonMatchesASpec(t *testing.T) {
	errtest.Check(t, Network().Unmatched(allSpecs(t)))
	for _, r := range reasons {
		if r.why == "" {
			t.Errorf("%q has no reason", r.pattern)
		}
	}
	if err := Network().Unmatched([]string{"[sig-network] renamed"}); err == nil ||
		!strings.Contains(err.Error(), "matches no spec") {
		t.Errorf("a spec that the upstream has renamed: %v", err)
	}
}

// volumeSpecs returns the specs for volumes of the version that is run, with testdriver.yaml.
func volumeSpecs(t *testing.T) []string {
	t.Helper()
	b := filetest.Read(t, "testdata/volumespecs.txt")
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

func TestVolumes(t *testing.T) {
	suite := Volumes("/definition")
	errtest.Check(t, suite.Unmatched(volumeSpecs(t)))
	r := newReport(suite, volumeSpecs(t), labFacts)
	// A reduction of the number of specs must be deliberate.
	if len(r.todo) < 129 {
		t.Errorf("%d of %d specs are run", len(r.todo), len(volumeSpecs(t)))
	}
	for _, want := range []string{"volumes should store data", "ReadWriteOncePod",
		"Dynamic Snapshot (delete policy)", "volume-expand", "subPath should support readOnly",
		"Generic Ephemeral-volume (default fs) (late-binding)", "snapshottable-stress",
		"volume-stress"} {
		if !slices.ContainsFunc(r.todo, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("no spec that has %q is run", want)
		}
	}
	if args := (RunConfig{Suite: suite}).arguments("/dir", r.todo[:1], labFacts,
		time.Minute); !slices.Contains(args, "--storage.testdriver=/definition") {
		t.Errorf("arguments %q", args)
	}
}

// The upstream ignores fields that it does not define.
func TestDefinition(t *testing.T) {
	text := filetest.Read(t, "testdriver.yaml")

	// These are the used fields of driverDefinition and DriverInfo
	// (test/e2e/disk/external/external.go, test/e2e/disk/framework/testdriver.go).
	var definition struct {
		StorageClass, SnapshotClass struct{ FromExistingClassName string }
		DriverInfo                  struct {
			Name                                  string
			SupportedSizeRange                    struct{ Min, Max string }
			MaxFileSize                           int64
			SupportedFsType, SupportedMountOption map[string]struct{}
			TopologyKeys, RequiredAccessModes     []string
			StressTestOptions                     struct{ NumPods, NumRestarts int }
			VolumeSnapshotStressTestOptions       struct{ NumPods, NumSnapshots int }
			Capabilities                          map[string]bool
		}
		Timeouts map[string]string
	}
	errtest.Must(t, yaml.UnmarshalStrict(text, &definition))

	known := []string{"persistence", "block", "fsGroup", "exec", "snapshotDataSource",
		"pvcDataSource", "multipods", "readWriteOncePod", "multiplePVsSameID",
		"controllerExpansion",
		"nodeExpansion", "onlineExpansion", "offlineExpansion", "singleNodeVolume", "topology",
		"capacity"}
	for name := range definition.DriverInfo.Capabilities {
		if !slices.Contains(known, name) {
			t.Errorf("capability %s: the upstream has none of that name", name)
		}
	}

	// If one duration cannot be parsed, the upstream ignores all durations. It also ignores
	// durations with unknown names (test/pkg/remote/timeouts.go).
	for name, value := range definition.Timeouts {
		if d, err := time.ParseDuration(value); err != nil || d < time.Minute ||
			!slices.Contains([]string{"PodStart", "PodDelete", "ClaimProvision",
				"DataSourceProvision"}, name) {
			t.Errorf("timeout %s of %s: %v", name, value, err)
		}
	}

	if !strings.Contains(upstream.Volumes, definition.DriverInfo.Name) {
		t.Errorf("driver %s, specs %s", definition.DriverInfo.Name, upstream.Volumes)
	}
}

// TestSpecsThatRun counts the upstream's specs that run. A reduction of their number must be
// deliberate.
func TestSpecsThatRun(t *testing.T) {
	for name, tt := range map[string]struct {
		facts    Facts
		run, not []string
		least    int
	}{
		"lab": {labFacts, []string{"DNS should provide DNS for services [Conformance]",
			"Services should serve a basic endpoint from pods [Conformance]",
			"[Feature:IPv6DualStack] should have at least one dual-stack node"},
			[]string{"Netpol NetworkPolicy between server and client should support allow-all " +
				"policy [Feature:NetworkPolicy]"}, 150},
		"policies": {Facts{Nodes: 2, Others: 1, DNS: true, Emulated: true, Policies: true},
			[]string{
				"Netpol API should support creating NetworkPolicy API operations",
				"Netpol NetworkPolicy between server and client should support allow-all " +
					"policy [Feature:NetworkPolicy]",
				"Netpol [Feature:SCTPConnectivity] [LinuxOnly] NetworkPolicy between server and " +
					"client using SCTP should enforce policy based on Ports " +
					"[Feature:NetworkPolicy]",
			}, nil, 198},
		"no kube-proxy": {Facts{Nodes: 2, Others: 1, DNS: true, Emulated: true, EBPF: true},
			[]string{
				"Services should implement service.kubernetes.io/service-proxy-name",
				"Topology Hints should distribute endpoints evenly",
				"Services should allow creating a basic SCTP service with pod and endpoints " +
					"[LinuxOnly] [Serial]",
				"Networking Granular Checks: Services should function for pod-Service: udp",
				"Networking Granular Checks: Pods should function for intra-pod communication: " +
					"sctp [LinuxOnly] [Feature:SCTPConnectivity]",
			}, []string{
				"Services should work after restarting kube-proxy [Disruptive]",
				"KubeProxy should set TCP CLOSE_WAIT timeout [Privileged]",
				"Networking should check kube-proxy urls",
				"Networking Granular Checks: Services should function for pod-Service: sctp " +
					"[Feature:SCTPConnectivity]",
			}, 140},
		"policies, no kube-proxy": {Facts{Nodes: 2, Others: 1, DNS: true, EBPF: true,
			Policies: true}, []string{
			"Netpol NetworkPolicy between server and client should support allow-all policy " +
				"[Feature:NetworkPolicy]",
		}, []string{
			"Netpol [Feature:SCTPConnectivity] [LinuxOnly] NetworkPolicy between server and " +
				"client using SCTP should enforce policy based on Ports [Feature:NetworkPolicy]",
		}, 185},
		"kube-proxy in mode iptables": {Facts{Nodes: 2, DNS: true, ProxyMode: "iptables"},
			[]string{"KubeProxy should update metric for tracking accepted packets destined for " +
				"localhost nodeports [Feature:KubeProxyNFAcct]"}, nil, 150},
		"kube-proxy in mode ipvs": {Facts{Nodes: 2, DNS: true, ProxyMode: "ipvs"}, nil,
			[]string{"KubeProxy should update metric for tracking accepted packets destined for " +
				"localhost nodeports [Feature:KubeProxyNFAcct]"}, 150},
		"without DNS": {Facts{Nodes: 2},
			[]string{"Services should serve a basic endpoint from pods [Conformance]",
				"Networking IPerf2 [Feature:Networking-Performance] should run iperf2"},
			[]string{"DNS should provide DNS for services [Conformance]"}, 130},
		"one node only": {Facts{Nodes: 1, DNS: true},
			[]string{"Services should serve a basic endpoint from pods [Conformance]"},
			[]string{"Services should be able to create a functioning NodePort service " +
				"[Conformance]"}, 80},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReport(Network(), allSpecs(t), tt.facts)
			run := strings.Join(r.todo, "\n") + "\n"
			for _, s := range tt.run {
				if !strings.Contains(run, upstream.Group+" "+s+"\n") {
					t.Errorf("%q is not run", s)
				}
			}

			for _, s := range tt.not {
				if strings.Contains(run, upstream.Group+" "+s+"\n") {
					t.Errorf("%q is run", s)
				}
			}

			if len(r.todo) < tt.least {
				t.Errorf("%d specs are run, want %d or more", len(r.todo), tt.least)
			}
		})
	}
}

// Known failures depend on the machines and on the program that translates services.
func TestKnownFailuresByMachines(t *testing.T) {
	ebpf := labFacts
	ebpf.EBPF = true
	fast := ebpf
	fast.Emulated = false

	for name, tt := range map[string]struct {
		spec  string
		facts Facts
		want  string
	}{
		"emulated, kube-proxy": {"Services should fallback to local terminating endpoints when " +
			"there are no ready endpoints with externalTrafficPolicy=Local", labFacts,
			"upstream: "},
		"emulated, ebpf": {"Services should fallback to local terminating endpoints when " +
			"there are no ready endpoints with externalTrafficPolicy=Local", ebpf, ""},
		"not emulated": {"Services should fallback to local terminating endpoints when " +
			"there are no ready endpoints with externalTrafficPolicy=Local", fast, ""},
	} {
		t.Run(name, func(t *testing.T) {
			spec := upstream.Group + " " + tt.spec
			if !slices.Contains(allSpecs(t), spec) {
				t.Fatalf("no spec %q", spec)
			}
			why, found := Network().find(fails, spec, tt.facts)
			if found != (tt.want != "") || !strings.HasPrefix(why, tt.want) {
				t.Errorf("%q, want %q", why, tt.want)
			}
		})
	}
}

// someReport returns a report with one verdict of each kind.
func someReport(t *testing.T) *Report {
	t.Helper()
	before := table
	t.Cleanup(func() { table = before })
	table = compile([]reason{
		{fate: notRun, pattern: "needs a cloud", why: "no cloud"},
		{fate: fails, pattern: "known", why: "ours: not done"},
		{fate: fails, pattern: "elsewhere", when: func(f Facts) bool { return f.Nodes > 2 },
			why: "upstream: wants two"},
	})
	names := []string{"passes", "needs a cloud", "is known", "is known and passes", "breaks",
		"recovers", "skips itself", "breaks elsewhere"}
	for i := range names {
		names[i] = upstream.Group + " " + names[i]
	}
	r := newReport(Network(), names, labFacts)
	for name, status := range map[string]upstream.Status{
		"passes": upstream.Passed, "is known": upstream.Failed,
		"is known and passes": upstream.Passed, "breaks": upstream.Failed,
		"recovers": upstream.Failed, "skips itself": upstream.Skipped,
		"breaks elsewhere": upstream.Failed,
	} {
		r.add(upstream.Outcome{Name: upstream.Group + " " + name, Status: status,
			Message: name + ": message", Elapsed: time.Second})
	}
	return r
}

func TestReport(t *testing.T) {
	r := someReport(t)
	r.Facts.ProxyMode = "ipvs"
	if r.left() != 0 {
		t.Errorf("%d are left", r.left())
	}
	if diff := cmp.Diff([]string{upstream.Group + " breaks", upstream.Group + " breaks elsewhere",
		upstream.Group + " recovers"}, r.unexplained()); diff != "" {
		t.Error(diff)
	}

	r.add(upstream.Outcome{Name: upstream.Group + " recovers", Status: upstream.Passed})
	r.add(upstream.Outcome{Name: upstream.Group + " breaks", Status: upstream.Failed,
		Message: "again"})
	result, err := bench.New(bench.Emulated, ".")
	errtest.Must(t, err)

	want := bench.Tests{Passed: 3, Failed: 3,
		Skipped: []bench.Skip{{Name: upstream.Group + " needs a cloud", Reason: "no cloud"},
			{Name: upstream.Group + " skips itself",
				Reason: "the test skips itself: skips itself: message"}},
		Failures: []bench.Failure{
			{Name: upstream.Group + " breaks", Reason: "no reason is listed: again"},
			{Name: upstream.Group + " breaks elsewhere",
				Reason: "no reason is listed: breaks elsewhere: message"},
			{Name: upstream.Group + " is known", Reason: "known: ours: not done"},
		}}
	if diff := cmp.Diff(want, r.Result(result).Tests); diff != "" {
		t.Error(diff)
	}

	if diff := cmp.Diff(map[string]string{"kube_proxy": "ipvs", "policy": "none"},
		result.Facts); diff != "" {
		t.Error(diff)
	}

	errtest.Check(t, result.Validate())
	if missed := result.Missed(); len(missed) != 1 || missed[0].Got != "2 specs" {
		t.Errorf("gates missed: %+v", missed)
	}
}

func TestMarkdown(t *testing.T) {
	r := someReport(t)
	r.add(upstream.Outcome{Name: upstream.Group + " recovers", Status: upstream.Passed})
	r.Facts.EBPF, r.Facts.Policies, r.Wire = true, true, &leak.Result{Frames: 9, Plaintext: 1,
		Kinds: map[leak.Kind]uint64{leak.Tunnel: 7}}
	var b strings.Builder
	errtest.Must(t, r.WriteMarkdown(&b, "Two | nodes"))
	for _, want := range []string{
		"2 nodes take pods, only Kubeveil translates services, " +
			"Kubeveil enforces NetworkPolicy; begun",
		"| 3 | 1 | 2 | 2 |",
		"On the wire: 1 of 9 with plaintext, 0 missed, 7 of tunnels.",
		"## Failed, and no reason is listed\n\n| spec | |\n|---|---|\n| breaks | breaks: message " +
			"|\n| breaks elsewhere |",
		"| is known | ours: not done |",
		"| is known and passes | take it off the list",
		"| recovers | first: recovers: message |",
		"1: no cloud\n\n- needs a cloud\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
