package driver

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// hereEnv is set in processes that run one test. csi-sanity's framework can run once per process
// and leaves a goroutine behind, and mounts belong to one process.
const hereEnv = "KUBEVEIL_CSI_HERE"

// elsewhere runs a test of this program in a process with its own mount namespace, and returns the
// output.
func elsewhere(t *testing.T, test, value string, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0],
		append([]string{"-test.run=^" + test + "$", "-test.v"}, args...)...)
	cmd.Env = append(os.Environ(), hereEnv+"="+value)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	return cmd.CombinedOutput()
}

// here returns the value that elsewhere passed to this process. It skips the test if elsewhere did
// not start the process.
func here(t *testing.T) string {
	t.Helper()
	what := os.Getenv(hereEnv)
	if what == "" {
		nettest.Skip(t, nettest.Short, "another test runs it in a process of its own")
	}
	return what
}

// unadvertised maps the beginnings of csi-sanity's skip messages to the reason why the driver lacks
// the feature.
var unadvertised = map[string]string{
	"ControllerPublishVolume not supported": "a volume is on the node where it is " +
		"used: nothing is attached",
	"Controller Publish, UnpublishVolume not supported": "as above",
	"ControllerUnpublishVolume not supported":           "as above",
	"ControllerExpandVolume not supported":              "volumes are expanded by their node alone",
	"ControllerModifyVolume not supported":              "no parameter of a volume can be changed",
	"Modify volume not supported":                       "as above",
	"Modify Volume not supported":                       "as above",
	"ControllerGetVolumeHealth not supported":           "the node says it",
	"ControllerListVolumeHealth not supported":          "the node says it",
	"NodeGetStorageHealth not supported":                "capacity says it",
	"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported": "alpha, and csi-test 5.6.0 compares what " +
		"it says with unmarshalled messages; a copy on another node is told where its source is",
	"GroupController": "volumes have no groups",
}

// onLoopDevices is the suffix of the name of a run with real file systems and mounts instead of
// fakes.
const onLoopDevices = " on loop devices"

// TestSanity runs csi-sanity of csi-test against the driver, and logs the specs that passed and
// that were skipped.
func TestSanity(t *testing.T) {
	for _, access := range []string{"mount", "block", "mount on loop devices",
		"block on loop devices"} {
		t.Run(access, func(t *testing.T) {
			if strings.HasSuffix(access, onLoopDevices) {
				needLoops(t)
			}

			report := filepath.Join(t.TempDir(), "report.json")
			out, err := elsewhere(t, "TestSanityHere", access, "-ginkgo.json-report="+report,
				"-ginkgo.no-color")
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}

			text := filetest.Read(t, report)
			var suites []types.Report
			errtest.Must(t, json.Unmarshal(text, &suites))

			check(t, suites[0].SpecReports)
			if access == "mount"+onLoopDevices {
				t.Run("ext4 grows", needGrowth)
			}
		})
	}
}

// check logs specs by their outcome, and fails the test for unexpected outcomes.
func check(t *testing.T, specs types.SpecReports) {
	byState := map[types.SpecState][]string{}
	unused := maps.Clone(unadvertised)
	for _, s := range specs {
		if s.LeafNodeType != types.NodeTypeIt {
			continue
		}

		name := s.FullText()
		if s.State == types.SpecStateSkipped {
			known := false
			for m := range unadvertised {
				if strings.HasPrefix(s.Failure.Message, m) {
					known = true
					delete(unused, m)
				}
			}
			if name += ": " + s.Failure.Message; !known {
				t.Errorf("skipped: %s", name)
			}
		}

		if s.State.Is(types.SpecStateFailureStates) {
			t.Errorf("%s: %s: %s", s.State, name, s.Failure.Message)
		}

		byState[s.State] = append(byState[s.State], name)
	}

	for _, state := range slices.Sorted(maps.Keys(byState)) {
		slices.Sort(byState[state])
		t.Logf("%d %s:\n  %s", len(byState[state]), state, strings.Join(byState[state], "\n  "))
	}

	for m := range unused {
		t.Errorf("nothing was skipped by %q", m)
	}

	const least = 70
	if len(byState[types.SpecStatePassed]) < least {
		t.Errorf("%d passed, of at least %d: is this csi-sanity?",
			len(byState[types.SpecStatePassed]), least)
	}
}

// TestSanityHere runs csi-sanity in a process that elsewhere started.
func TestSanityHere(t *testing.T) {
	access := here(t)
	var m *machine
	if kind, ok := strings.CutSuffix(access, onLoopDevices); ok {
		access, m = kind, onLoops(t)
	} else {
		m = newMachine(t)
	}
	m.client(m.process(0))
	c := sanity.NewTestConfig()
	c.Address = "unix:" + m.path("csi.sock")
	c.TargetPath, c.StagingPath = m.path("target"), m.path("staging")
	c.TestVolumeSize, c.TestVolumeAccessType = size, access
	sc := sanity.GinkgoTest(&c)
	defer sc.Finalize()
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, "csi-sanity "+access)
}
