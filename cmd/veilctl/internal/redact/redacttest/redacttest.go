// Package redacttest plants secrets in a cluster, and finds those that come out. Start reading at
// Planted and Check.
package redacttest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// OwnToken is a secret of the user. PublishedKey is a public key, so not a secret.
const (
	OwnToken     = "opaque-token-of-the-operator"
	PublishedKey = "mJLSJPVW9uOCfdbDrH0dNJ3x/YH10Ht548IAg99J2Xw="
)

// Secrets that must not be in any output, in the forms that they have in clusters.
const (
	plantedKey   = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="
	plantedHex   = "c809f3e5317e9575c9b5ed78b638b7ce530dabe85ddab614220241801ddf0669"
	plantedToken = "eyJhbGciOiJSUzI1NiIsImtpZCI6IkEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0." +
		"c2lnbmF0dXJlLW9mLXRoaXM"
	plantedBootstrap = "abcdef.0123456789abcdef"
	plantedPassword  = "correct-horse-battery"
	plantedPEM       = "MHcCAQEEIBf0yPq3pXlXx1cJYdYpGk5oBBBBBBBBBBBBBBBBBBBBBBBB"
	plantedWrapped   = "d3JhcHBlZCBrZXkgb2YgYSB2b2x1bWU"
)

const plantedBlock = "-----BEGIN EC " + "PRIVATE KEY-----\n" + plantedPEM + "\n-----END EC " +
	"PRIVATE KEY-----\n"

// API answers as an API server does, from a table of paths, and records the requests. A path that
// is not in the table is not found.
type API struct {
	Answers map[string]string
	mu      sync.Mutex
	Asked   []string
}

func (f *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.Asked = append(f.Asked, r.Method+" "+r.URL.Path)
	f.mu.Unlock()
	key := r.URL.Path
	if r.URL.Query().Get("previous") == "true" {
		key += "?previous"
	}
	w.Header().Set("Content-Type", "application/json")
	text, ok := f.Answers[key]
	switch {
	case ok && strings.Contains(r.URL.Path, "/log"):
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, text)
	case ok:
		fmt.Fprint(w, text)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "selfsubjectaccessreviews"):
		fmt.Fprint(w,
			`{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1",`+
				`"status":{"allowed":true}}`)
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound",`+
				`"code":404,"message":"it is not there; the request had token=`+plantedToken+`"}`)
	}
}

// ListOf returns the JSON of a list of objects.
func ListOf(kind, version string, items ...any) string {
	b, err := json.Marshal(map[string]any{"kind": kind + "List", "apiVersion": version,
		"metadata": map[string]any{}, "items": items})
	if err != nil {
		panic(err)
	}
	return string(b)
}

type m = map[string]any

// Planted returns a cluster with secrets in logs, ConfigMaps, annotations, environment, and events.
func Planted() *API {
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
	return &API{Answers: map[string]string{
		"/version": `{"gitVersion":"v1.36.3"}`,
		"/api/v1/nodes": ListOf("Node", "v1",
			m{"metadata": m{"name": "node-1", "annotations": m{"note": plantedHex}}}),
		"/apis/kubeveil.io/v1alpha1/veilnodes": ListOf("VeilNode", "kubeveil.io/v1alpha1",
			m{"kind": "VeilNode", "apiVersion": "kubeveil.io/v1alpha1",
				"metadata": m{"name": "node-1"},
				"spec":     m{"keys": []any{m{"epoch": 3, "publicKey": PublishedKey}}}}),
		"/apis/kubeveil.io/v1alpha1/sitelinks": ListOf("SiteLink", "kubeveil.io/v1alpha1",
			m{"kind": "SiteLink", "apiVersion": "kubeveil.io/v1alpha1", "metadata": m{"name": "b"},
				"status": m{"problems": []any{"endpoint 10.0.0.1 of service private-name/web is refused",
					"https://user:" + plantedPassword + "@192.0.2.1/ said " + plantedToken}}}),
		"/api/v1/namespaces/kube-system/pods": ListOf("Pod", "v1", pod),
		"/api/v1/pods": ListOf("Pod", "v1", pod,
			m{"metadata": m{"name": "private-name", "namespace": "customer"},
				"spec": m{"nodeName": "node-1"}}),
		"/api/v1/namespaces/kube-system/configmaps": ListOf("ConfigMap", "v1",
			configMap("kubeveil", "veild.yaml", "mtu: 1400\n# "+plantedKey),
			configMap("kube-proxy", "kubeconfig.conf", kubeconfig)),
		"/api/v1/namespaces/kube-system/events": ListOf("Event", "v1",
			m{"metadata": m{"name": "e", "namespace": "kube-system"},
				"involvedObject": m{"kind": "Pod", "name": "veild-a"},
				"message": "https://user:" + plantedPassword +
					"@registry.example/ said no"}),
		"/api/v1/namespaces/default/events": ListOf("Event", "v1"),
		"/apis/csi.kubeveil.io/v1alpha1/veilvolumes": ListOf("VeilVolume",
			"csi.kubeveil.io/v1alpha1", m{"kind": "VeilVolume",
				"apiVersion": "csi.kubeveil.io/v1alpha1",
				"metadata": m{"name": "pvc-1",
					"annotations": m{
						"kubectl.kubernetes.io/last-applied-configuration": plantedWrapped}},
				"spec": m{"cluster": "c", "node": "node-1"},
				"status": m{"phase": "Ready", "key": m{"provider": "kms", "keyID": "key-7",
					"blob": plantedWrapped, "annotations": m{"version": plantedWrapped}}}}),
		"/apis/storage.k8s.io/v1/storageclasses": ListOf("StorageClass", "storage.k8s.io/v1",
			m{"metadata": m{"name": "kubeveil"}, "provisioner": "csi.kubeveil.io"},
			m{"metadata": m{"name": "private-name"}, "provisioner": "elsewhere"}),
		"/api/v1/persistentvolumes": ListOf("PersistentVolume", "v1",
			m{"metadata": m{"name": "pvc-1"}, "spec": m{
				"csi":      m{"driver": "csi.kubeveil.io", "volumeHandle": "pvc-1"},
				"claimRef": m{"namespace": "private-name", "name": "private-name"}}}),
		"/api/v1/namespaces/kube-system/pods/veild-a/log": "level=INFO msg=started\nprivate_key=" +
			plantedHex + "\nkey " + plantedKey + "\npublic " + PublishedKey +
			"\nAuthorization: Bearer " + plantedToken + "\nkubeadm join --token " +
			plantedBootstrap + "\n" + plantedBlock + "own " + OwnToken + "\n",
		"/api/v1/namespaces/kube-system/pods/veild-a/log?previous": "panic: " + plantedKey + "\n" +
			plantedBlock[:60],
	}}
}

// Secrets returns the secrets in the answers of Planted. No output may contain them.
func Secrets() []string {
	return []string{plantedKey, plantedHex, plantedToken, plantedBootstrap, plantedPassword,
		OwnToken, plantedPEM, plantedWrapped, base64.StdEncoding.EncodeToString([]byte(plantedBlock))[40:80],
		"private-name"}
}

// Text returns lines with secrets in the forms that they have in logs and errors.
func Text() string {
	return "private_key=" + plantedHex + " key " + plantedKey + " Authorization: Bearer " +
		plantedToken + " --token " + plantedBootstrap + " https://user:" + plantedPassword +
		"@registry.example/\n" + plantedBlock
}

// Check fails the test if text, the content of the file called name, contains a secret.
func Check(t *testing.T, name, text string) {
	t.Helper()
	for _, secret := range Secrets() {
		if strings.Contains(text, secret) {
			t.Errorf("%s holds %q:\n%s", name, secret, text)
		}
	}
}
