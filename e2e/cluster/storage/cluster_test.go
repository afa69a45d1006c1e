package storage

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestCases(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cases() {
		if !regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`).MatchString(c.name) || seen[c.name] ||
			c.limit == 0 || c.run == nil {
			t.Errorf("case %q: limit %v", c.name, c.limit)
		}
		seen[c.name] = true
	}
}

// The cases that install the driver always run, regardless of the selection.
func TestChosen(t *testing.T) {
	for pattern, want := range map[string]string{"^reboot$": "disk install reboot",
		"nothing-like-this": "disk install"} {
		var got []string
		for _, c := range (&Session{Only: regexp.MustCompile(pattern)}).chosen() {
			got = append(got, c.name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", pattern, got, want)
		}
	}
	if all := (&Session{}).chosen(); len(all) != len(cases()) {
		t.Errorf("%d of %d cases", len(all), len(cases()))
	}
}

// The commands in the documentation are found and name the expected objects.
func TestTakeOverSteps(t *testing.T) {
	text := filetest.Read(t, "../../../docs/"+document)
	move, done, err := takeOverSteps(string(text), "pvc-x", "one", "two")
	errtest.Must(t, err)
	for _, want := range []string{"kubectl delete node one", "patch veilvolume pvc-x", `"to":"two"`,
		"delete pv pvc-x", `.values = ["two"]`} {
		if !strings.Contains(move, want) {
			t.Errorf("%s is missing in\n%s", want, move)
		}
	}
	if want := `"takeOver":null`; !strings.Contains(done, want) || strings.Contains(move, want) {
		t.Errorf("%s is not in the last step:\n%s", want, done)
	}
	if left := regexp.MustCompile(`\bV\b|node-\d`).FindString(move + done); left != "" {
		t.Errorf("%q is left", left)
	}
	if _, _, err := takeOverSteps("no such text", "v", "a", "b"); err == nil {
		t.Error("no steps returned no error")
	}
}

func TestRecoverySteps(t *testing.T) {
	script, err := recoverySteps([]byte(
		`{"recoveryKey":"abcd","steps":["Do:\n  DEVICE=$(losetup x)","Open:\n  cryptsetup open $DEVICE y\nor otherwise","Look:\n  mount y /mnt      (xfs: otherwise)","Close:\n  umount /mnt"]}`), "look")
	if want := "set -e\nDEVICE=$(losetup x)\necho abcd | cryptsetup open $DEVICE y\nmount y " +
		"/mnt\nlook\numount /mnt"; err != nil || script != want {
		t.Errorf("%q, %v", script, err)
	}
	for _, bad := range []string{"", "{}", `{"steps":["a"],"recoveryKey":"x"}`} {
		if _, err := recoverySteps([]byte(bad), "look"); err == nil {
			t.Errorf("%s returned no error", bad)
		}
	}
}

// The unencrypted volume that is measured for comparison is YAML of a class and a volume.
func TestVolumeInClear(t *testing.T) {
	var b bytes.Buffer
	errtest.Must(t, clear.Execute(&b, map[string]any{"MiB": 1, "Path": "/p", "Node": "n"}))
	d := yaml.NewYAMLOrJSONDecoder(&b, 4096)
	for _, want := range []string{"StorageClass", "PersistentVolume"} {
		var object struct{ Kind string }
		if err := d.Decode(&object); err != nil || object.Kind != want {
			t.Fatalf("%+v, %v; want a %s", object, err, want)
		}
	}
}
