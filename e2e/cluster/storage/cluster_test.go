package storage

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubeveil/kubeveil/e2e/disk"
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

// The search fails where a canary is in clear, wherever on the disk, and where it could not have
// found one.
func TestSearchOfADisk(t *testing.T) {
	s := &Session{canary: "the-canary", control: "the-control"}
	control := strings.Repeat(s.control+"\n", controlLines)
	for name, c := range map[string]struct{ content, want string }{
		"clean": {strings.Repeat("x", 1<<20) + control, ""},
		"a canary": {control + strings.Repeat("x", 3<<20) + s.canary,
			"canaries in clear: want 0 canaries"},
		"a canary at the border": {control + strings.Repeat("x", 1<<20-len(control)-3) + s.canary,
			"canaries in clear"},
		"nothing is found": {strings.Repeat("x", 1<<20), "the control in clear"},
	} {
		disk := disk.Disk{Path: filepath.Join(t.TempDir(), "disk")}
		filetest.Write(t, disk.Path, []byte(c.content), 0o600)
		gates, err := s.search(disk, "disk")
		if len(gates) != 2 || (err == nil) != (c.want == "") ||
			err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := s.search(disk.Disk{Path: filepath.Join(t.TempDir(), "none")},
		"disk"); err == nil {
		t.Error("a disk that is not there has nothing in clear")
	}
}

// The output of the templates is YAML of as many objects as expected, each with a kind and a name.
func TestObjects(t *testing.T) {
	type class struct{ Name, FS string }
	for name, tt := range map[string]struct {
		template *template.Template
		data     map[string]any
		want     []string
	}{
		"setup": {setup, map[string]any{"Key": "aGVsbG8=",
			"Classes": []class{{"a", "ext4"}, {"b", ""}},
			"Secrets": []string{"provisioner", "node-stage"}},
			[]string{"Secret", "Role", "RoleBinding", "StorageClass", "StorageClass",
				"VolumeSnapshotClass"}},
		"a copy": {claimAndPod, map[string]any{"Name": "n", "Class": "c", "Block": false,
			"MiB": 9, "SourceKind": "VolumeSnapshot", "Source": "s", "Node": "n", "Image": "i"},
			[]string{"PersistentVolumeClaim", "Pod"}},
		"in clear": {clear, map[string]any{"MiB": 1, "Path": "/p", "Node": "n"},
			[]string{"StorageClass", "PersistentVolume"}},
		"a device": {claimAndPod, map[string]any{"Name": "n", "Class": "c", "Block": true, "MiB": 9,
			"SourceKind": "", "Source": "", "Image": "i"},
			[]string{"PersistentVolumeClaim", "Pod"}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := tt.template.Execute(&b, tt.data); err != nil {
				t.Fatal(err)
			}

			d := yaml.NewYAMLOrJSONDecoder(&b, 4096)
			for _, want := range append(tt.want, "") {
				var object struct {
					Kind     string
					Metadata struct{ Name string }
				}
				err := d.Decode(&object)
				if want == "" && errors.Is(err, io.EOF) {
					return
				}
				if err != nil || object.Kind != want || object.Metadata.Name == "" {
					t.Fatalf("%+v, %v; want a %s", object, err, want)
				}
			}
		})
	}
}

// The upstream's tests of volumes copy classes of these.
func TestConformanceCopiesOurClasses(t *testing.T) {
	text := filetest.Read(t, "../../conformance/testdriver.yaml")
	var made bytes.Buffer
	if err := setup.Execute(&made, map[string]any{"Key": "",
		"Classes": []struct{ Name, FS string }{{ext4.class, "ext4"}},
		"Secrets": []string{}}); err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(
		`(StorageClass|SnapshotClass):\n(?: *#.*\n)* *FromExistingClassName: (\S+)`).
		FindAllStringSubmatch(string(text), -1)
	if len(named) != 2 {
		t.Errorf("classes %q", named)
	}
	for _, m := range named {
		kind := strings.Replace(m[1], "Snapshot", "VolumeSnapshot", 1)
		if !strings.Contains(made.String(), "kind: "+kind+"\nmetadata: {name: "+m[2]+"}") {
			t.Errorf("there is no %s %s", kind, m[2])
		}
	}
}

// The documentation's commands are found, and name what they are to.
func TestTakeOverSteps(t *testing.T) {
	text := filetest.Read(t, "../../../docs/"+document)
	move, done, err := takeOverSteps(string(text), "pvc-x", "one", "two")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kubectl delete node one", "patch veilvolume pvc-x", `"to":"two"`,
		"delete pv pvc-x", `.values = ["two"]`} {
		if !strings.Contains(move, want) {
			t.Errorf("no %s in\n%s", want, move)
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
