package sysdump

import (
	"archive/tar"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Secrets that must not come out, in the forms that they have in clusters.
const (
	plantedKey       = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="
	plantedHex       = "c809f3e5317e9575c9b5ed78b638b7ce530dabe85ddab614220241801ddf0669"
	plantedToken     = "eyJhbGciOiJSUzI1NiIsImtpZCI6IkEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLW9mLXRoaXM"
	plantedBootstrap = "abcdef.0123456789abcdef"
	plantedPassword  = "correct-horse-battery"
	plantedOwn       = "opaque-token-of-the-operator"
	plantedPEM       = "MHcCAQEEIBf0yPq3pXlXx1cJYdYpGk5oBBBBBBBBBBBBBBBBBBBBBBBB"
	plantedWrapped   = "d3JhcHBlZCBrZXkgb2YgYSB2b2x1bWU"
	publishedKey     = "mJLSJPVW9uOCfdbDrH0dNJ3x/YH10Ht548IAg99J2Xw="
)

const plantedBlock = "-----BEGIN EC " + "PRIVATE KEY-----\n" + plantedPEM + "\n-----END EC " +
	"PRIVATE KEY-----\n"

// fakeAPI answers as an API server does, from a table of paths, and records the requests. A path
// that is not in the table is not found.
type fakeAPI struct {
	answers map[string]string
	mu      sync.Mutex
	asked   []string
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked = append(f.asked, r.Method+" "+r.URL.Path)
	f.mu.Unlock()
	key := r.URL.Path
	if r.URL.Query().Get("previous") == "true" {
		key += "?previous"
	}
	w.Header().Set("Content-Type", "application/json")
	text, ok := f.answers[key]
	switch {
	case ok && strings.Contains(r.URL.Path, "/log"):
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, text)
	case ok:
		fmt.Fprint(w, text)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "selfsubjectaccessreviews"):
		fmt.Fprint(w,
			`{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`)
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"it is not there; the request had token=`+plantedToken+`"}`)
	}
}

func listOf(kind, version string, items ...any) string {
	b, err := json.Marshal(map[string]any{"kind": kind + "List", "apiVersion": version,
		"metadata": map[string]any{}, "items": items})
	if err != nil {
		panic(err)
	}
	return string(b)
}

type m = map[string]any

// plantedAPI is a cluster with secrets in logs, ConfigMaps, annotations, environment, and events.
func plantedAPI() *fakeAPI {
	kubeconfig := "users: [{user: {client-key-data: " +
		base64.StdEncoding.EncodeToString([]byte(plantedBlock)) + ", token: " + plantedToken + "}}]"
	pod := m{"metadata": m{"name": "veild-a", "namespace": "kube-system"},
		"spec": m{"nodeName": "node-1", "containers": []any{
			m{"name": "veild", "image": "kubeveil",
				"env":  []any{m{"name": "PROXY_PASSWORD", "value": plantedPassword}},
				"args": []any{"--token=" + plantedBootstrap}},
		}}, "status": m{"phase": "Running",
			"containerStatuses": []any{m{"name": "veild", "restartCount": 1, "ready": true,
				"image": "", "imageID": ""}}}}

	configMap := func(name, key, text string) any {
		return m{"metadata": m{"name": name, "namespace": "kube-system",
			"annotations": m{"kubectl.kubernetes.io/last-applied-configuration": plantedKey}},
			"data": m{key: text}}
	}
	return &fakeAPI{answers: map[string]string{
		"/version": `{"gitVersion":"v1.36.3"}`,
		"/api/v1/nodes": listOf("Node", "v1",
			m{"metadata": m{"name": "node-1", "annotations": m{"note": plantedHex}}}),
		"/apis/kubeveil.io/v1alpha1/veilnodes": listOf("VeilNode", "kubeveil.io/v1alpha1",
			m{"kind": "VeilNode", "apiVersion": "kubeveil.io/v1alpha1",
				"metadata": m{"name": "node-1"},
				"spec":     m{"keys": []any{m{"epoch": 3, "publicKey": publishedKey}}}}),
		"/api/v1/namespaces/kube-system/pods": listOf("Pod", "v1", pod),
		"/api/v1/pods": listOf("Pod", "v1", pod,
			m{"metadata": m{"name": "private-name", "namespace": "customer"},
				"spec": m{"nodeName": "node-1"}}),
		"/api/v1/namespaces/kube-system/configmaps": listOf("ConfigMap", "v1",
			configMap("kubeveil", "veild.yaml", "mtu: 1400\n# "+plantedKey),
			configMap("kube-proxy", "kubeconfig.conf", kubeconfig)),
		"/api/v1/namespaces/kube-system/events": listOf("Event", "v1",
			m{"metadata": m{"name": "e", "namespace": "kube-system"},
				"involvedObject": m{"kind": "Pod", "name": "veild-a"},
				"message": "https://user:" + plantedPassword +
					"@registry.example/ said no"}),
		"/api/v1/namespaces/default/events": listOf("Event", "v1"),
		"/apis/csi.kubeveil.io/v1alpha1/veilvolumes": listOf("VeilVolume",
			"csi.kubeveil.io/v1alpha1", m{"kind": "VeilVolume",
				"apiVersion": "csi.kubeveil.io/v1alpha1",
				"metadata": m{"name": "pvc-1",
					"annotations": m{"kubectl.kubernetes.io/last-applied-configuration": plantedWrapped}}, "spec": m{"cluster": "c", "node": "node-1"},
				"status": m{"phase": "Ready", "key": m{"provider": "kms", "keyID": "key-7",
					"blob": plantedWrapped, "annotations": m{"version": plantedWrapped}}}}),
		"/apis/storage.k8s.io/v1/storageclasses": listOf("StorageClass", "storage.k8s.io/v1",
			m{"metadata": m{"name": "kubeveil"}, "provisioner": "csi.kubeveil.io"},
			m{"metadata": m{"name": "private-name"}, "provisioner": "elsewhere"}),
		"/api/v1/persistentvolumes": listOf("PersistentVolume", "v1",
			m{"metadata": m{"name": "pvc-1"}, "spec": m{
				"csi":      m{"driver": "csi.kubeveil.io", "volumeHandle": "pvc-1"},
				"claimRef": m{"namespace": "private-name", "name": "private-name"}}}),
		"/api/v1/namespaces/kube-system/pods/veild-a/log": "level=INFO msg=started\nprivate_key=" +
			plantedHex + "\nkey " + plantedKey + "\npublic " + publishedKey +
			"\nAuthorization: Bearer " + plantedToken + "\nkubeadm join --token " +
			plantedBootstrap + "\n" + plantedBlock + "own " + plantedOwn + "\n",
		"/api/v1/namespaces/kube-system/pods/veild-a/log?previous": "panic: " + plantedKey + "\n" +
			plantedBlock[:60],
	}}
}

// No secret comes out, other text does, and an unreadable object does not end the dump.
func TestSysdumpHasNoSecret(t *testing.T) {
	api := plantedAPI()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	cluster, err := remote.New(&rest.Config{Host: server.URL, BearerToken: plantedOwn})
	errtest.Must(t, err)
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	if err := writeDump(verb.Call{Ctx: t.Context(), Out: io.Discard, Progress: io.Discard}, cluster,
		file, "dump"); err != nil {
		t.Fatal(err)
	}

	files := unpackDump(t, file)
	for name, text := range files {
		for _, secret := range []string{plantedKey, plantedHex, plantedToken, plantedBootstrap,
			plantedPassword, plantedOwn, plantedPEM, plantedWrapped,
			base64.StdEncoding.EncodeToString([]byte(plantedBlock))[40:80], "private-name"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s holds %q:\n%s", name, secret, text)
			}
		}
	}

	for name, want := range map[string]string{
		"cluster/veilnodes.yaml":                 publishedKey,
		"cluster/configmap-kubeveil.yaml":        "mtu: 1400",
		"cluster/events.txt":                     "registry.example/ said no",
		"cluster/pods.txt":                       "node-1: 1 pods of other namespaces",
		"cluster/veilvolumes.yaml":               "keyID: key-7",
		"cluster/storageclasses.yaml":            "name: kubeveil",
		"cluster/volumes.txt":                    "somebody",
		"logs/node-1/veild-a-veild.log":          "public " + publishedKey,
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

	onlyLooked(t, api.asked)
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
