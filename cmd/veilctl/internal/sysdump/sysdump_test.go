package sysdump

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/redact/redacttest"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// The dump has no secrets and keeps other text. An unreadable object does not end the dump.
func TestSysdumpHasNoSecret(t *testing.T) {
	api := redacttest.Planted()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	cluster, err := remote.New(&rest.Config{Host: server.URL, BearerToken: redacttest.OwnToken})
	errtest.Must(t, err)
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	if err := writeDump(verb.Call{Ctx: t.Context(), Out: io.Discard, Progress: io.Discard}, cluster,
		file, "dump"); err != nil {
		t.Fatal(err)
	}

	files := unpackDump(t, file)
	for name, text := range files {
		redacttest.Check(t, name, text)
	}

	for name, want := range map[string]string{
		"cluster/veilnodes.yaml":                 redacttest.PublishedKey,
		"cluster/sitelinks.yaml":                 "endpoint 10.0.0.1 of service NAMESPACE/NAME",
		"cluster/configmap-kubeveil.yaml":        "mtu: 1400",
		"cluster/events.txt":                     "registry.example/ said no",
		"cluster/pods.txt":                       "node-1: 1 pods of other namespaces",
		"cluster/veilvolumes.yaml":               "keyID: key-7",
		"cluster/storageclasses.yaml":            "name: kubeveil",
		"cluster/volumes.txt":                    "somebody",
		"logs/node-1/veild-a-veild.log":          "public " + redacttest.PublishedKey,
		"logs/node-1/veild-a-veild.previous.log": "panic: REDACTED",
		"status.txt":                             "node-1",
		"check.txt":                              "nothing was changed",
		"manifest.json":                          "nodes/node-1/version.txt",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s does not hold %q:\n%s", name, want, files[name])
		}
	}

	var list manifest
	errtest.Must(t, json.Unmarshal([]byte(files["manifest.json"]), &list))
	if len(list.Files) != len(files)-1 || len(list.Missing) == 0 || len(list.LeftOut) == 0 {
		t.Errorf("the manifest has %d files of %d, %d missing", len(list.Files), len(files)-1,
			len(list.Missing))
	}

	for _, e := range list.Files {
		if e.Path == "logs/node-1/veild-a-veild.log" && e.Redacted < 6 {
			t.Errorf("%d secrets were taken out of the log, there are 6 kinds", e.Redacted)
		}
	}

	onlyLooked(t, api.Asked)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
}

// onlyLooked checks that no request changed anything or read a Secret.
func onlyLooked(t *testing.T, asked []string) {
	t.Helper()
	for _, a := range asked {
		if strings.Contains(a, "/secrets") ||
			!strings.HasPrefix(a, "GET ") && !strings.HasSuffix(a, "/selfsubjectaccessreviews") {
			t.Errorf("the API server was asked to %s", a)
		}
	}
	if len(asked) < len(dumpedObjects) || !slices.Contains(asked, "GET /api/v1/nodes") {
		t.Errorf("only %d requests were seen", len(asked))
	}
}

func unpackDump(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	errtest.Must(t, err)
	defer f.Close()
	gz, err := gzip.NewReader(f)
	errtest.Must(t, err)
	files := map[string]string{}
	for tr := tar.NewReader(gz); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		errtest.Must(t, err)
		b, err := io.ReadAll(tr)
		errtest.Must(t, err)
		files[strings.TrimPrefix(h.Name, "dump/")] = string(b)
	}
}

// A cluster that does not answer leaves no file behind.
func TestSysdumpWithoutAClusterLeavesNoFile(t *testing.T) {
	cluster, err := remote.New(&rest.Config{Host: "http://127.0.0.1:1"})
	errtest.Must(t, err)
	dir := t.TempDir()
	if err := writeDump(verb.Call{Ctx: t.Context(), Out: io.Discard, Progress: io.Discard}, cluster,
		filepath.Join(dir, "d"), "d"); err == nil {
		t.Error("no error")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
