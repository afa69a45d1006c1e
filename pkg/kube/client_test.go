package kube

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/filetest"
)

func TestNewSaysWhatIsWrongWithTheKubeconfig(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		filetest.Write(t, path, []byte(text), 0o600)
		return path
	}

	secret := "c2VjcmV0LXRva2Vu"
	for _, c := range []struct{ situation, path, want string }{
		{"absent", filepath.Join(dir, "none"), "does not exist: create it"},
		{"a directory", dir, "cannot be read"},
		{"empty", write("empty", ""), "is empty"},
		{"not YAML", write("garbage", "{\x00"), "kubeconfig " + filepath.Join(dir, "garbage")},
		{"no context", write("nocontext", "apiVersion: v1\nkind: Config\n"),
			"kubeconfig " + filepath.Join(dir, "nocontext")},
		{"certificate missing", write("nocert",
			`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
			"clusters":[{"name":"c","cluster":{"server":"https://198.18.0.1","certificate-authority":"absent.crt"}}],"users":[{"name":"u","user":{"token":"`+secret+`"}}]}`), "absent.crt"},
		{"outside a pod", "", "set source.kubeconfig"},
	} {
		_, err := New(ClientConfig{Node: "a", Kubeconfig: c.path})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.situation, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows the token: %v", c.situation, err)
		}
	}
}

func TestRefusalsAreExplained(t *testing.T) {
	for _, c := range []struct {
		situation, path string
		code            int
		want            string
	}{
		{"resource not installed", veilNodesPath, 404, "apply manifests/crd first"},
		{"nodes forbidden", nodesPath, 403, "manifests/cni/clusterrole.yaml"},
		{"endpoints forbidden", slicesPath, 403, "manifests/cni/role-apiserver.yaml"},
		{"credentials expired", nodesPath, 401, "does not accept the credentials"},
	} {
		t.Run(c.situation, func(t *testing.T) {
			f := newFakeServer(t)
			f.setRefuse("GET "+c.path, c.code)
			r := start(t, f, "a")
			eventually(t, "the problem says "+c.want, func() bool {
				return strings.Contains(fmt.Sprint(r.Problems()), c.want)
			})
			eventually(t, "it was tried several times",
				func() bool { return f.count("GET "+c.path) > 6 })
			if n := strings.Count(r.log.String(), "has a problem"); n != 1 {
				t.Errorf("logged %d times, want once:\n%s", n, r.log)
			}

			f.setRefuse("GET "+c.path, 0)
			r.until("synced", synced)
			eventually(t, "no problem is left", func() bool { return len(r.Problems()) == 0 })
		})
	}
}
