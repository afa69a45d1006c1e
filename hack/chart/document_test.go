package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// aFile matches a configuration in a document whose first line is a comment with the file's name.
var aFile = regexp.MustCompile("(?ms)^```yaml\n(# ([a-z/]+\\.yaml)\\b.*?)^```$")

// complete are the configurations that a page must have. All of these pages but one begin with what
// was not run.
var complete = map[string][]string{
	"get-started.md":        {"kustomization.yaml", "configmap.yaml"},
	"helm.md":               {"values.yaml"},
	"k3s.md":                {"way.yaml", "values.yaml"},
	"talos.md":              {"way.yaml", "values.yaml"},
	"kind.md":               {"configmap.yaml"},
	"clouds.md":             {"configmap.yaml"},
	"from-constellation.md": {"kustomization.yaml"}, // and the ConfigMap of clouds.md
	"from-calico.md":        {"kustomization.yaml", "configmap.yaml"},
	"from-flannel.md":       {"kustomization.yaml", "configmap.yaml"},
	"uninstall.md":          {"uninstall/kustomization.yaml"},
}

// checkDocuments checks the configurations that users copy from documents: the chart accepts
// values, kustomizations are rendered beside the folder of a release, veild accepts each
// configuration, and each kubeconfig has a server and a token.
func (b bench) checkDocuments(t *testing.T) {
	dir, checked := t.TempDir(), map[string][]string{}
	write := func(name, text string) {
		filetest.Write(t, filepath.Join(dir, name), []byte(text), 0o600)
	}
	errtest.Must(t, os.Mkdir(filepath.Join(dir, "v0.1.0"), 0o755),
		os.Mkdir(filepath.Join(dir, "uninstall"), 0o755), os.CopyFS(filepath.Join(dir,
			"components"), os.DirFS(filepath.Join(b.kustomize.Tree, "manifests/components"))))
	write("v0.1.0/kubeveil.yaml", b.render(t, "manifests"))
	write("v0.1.0/kubeveil-csi.yaml", b.render(t, "manifests/csi"))
	write("uninstall/uninstall.yaml", b.render(t, "manifests/uninstall"))

	pages, err := filepath.Glob("../../docs/how-to/*.md") // clouds.md has a ConfigMap for the others
	errtest.Must(t, err)
	for _, page := range append(pages, "../../docs/get-started.md") {
		text, name := string(filetest.Read(t, page)), filepath.Base(page)
		_, body, _ := strings.Cut(text, "\n\n")
		if complete[name] != nil && name != "uninstall.md" &&
			!strings.HasPrefix(body, "> Not run") {
			t.Errorf("%s does not begin with what was not run", page)
		}
		files := aFile.FindAllStringSubmatch(text, -1)
		for _, f := range files {
			write(f[2], f[1])
		}
		for _, f := range files {
			path, objects := filepath.Join(dir, f[2]), f[1]
			switch f[2] {
			case "values.yaml":
				// What a page gives to veilctl check is the whole of it.
				only, good := "templates/configmap-kubeveil.yaml", false
				if objects, good = b.template(t, "--values", path, "--show-only", only); !good ||
					!strings.Contains(text, "--show-only "+only+" |") {
					t.Errorf("%s: %s", page, objects)
				}
			case "kustomization.yaml", "uninstall/kustomization.yaml":
				out, err := exec.CommandContext(t.Context(), b.kustomize.Command[0], "kustomize",
					filepath.Dir(path)).CombinedOutput()
				if objects = string(out); err != nil {
					t.Errorf("%s: %v: %s", page, err, out)
				}
			case "configmap.yaml", "way.yaml":
			default:
				continue // of another program
			}
			checked[name] = append(checked[name], f[2])
			checkObjects(t, name+": "+f[2], objects)
		}
	}
	t.Log(checked)
	for page, names := range complete {
		for _, name := range names {
			if !slices.Contains(checked[page], name) {
				t.Errorf("%s has no configuration %s", page, name)
			}
		}
	}
}

// checkObjects checks the configuration of veild among objects, or else its kubeconfig. If there
// are rights among them, the policy has to come first.
func checkObjects(t *testing.T, what, text string) {
	t.Helper()
	objects, order := byID(t, text, nil)
	first := func(kind string) int {
		is := func(id string) bool { return strings.HasPrefix(id, kind+" ") }
		return slices.IndexFunc(order, is)
	}
	right, restraint := first("ClusterRoleBinding"), first("ValidatingAdmissionPolicyBinding")
	if right >= 0 && (restraint < 0 || right < restraint) {
		t.Errorf("%s: rights come before the policy that restrains them: %q", what, order)
	}

	var m struct{ Data map[string]string }
	if way := objects["ConfigMap kube-system kube-proxy"]; way != "" {
		errtest.Must(t, yaml.Unmarshal([]byte(way), &m))
		c, err := clientcmd.Load([]byte(m.Data["kubeconfig.conf"]))
		errtest.Must(t, err)
		at := c.Contexts[c.CurrentContext]
		if c.Clusters[at.Cluster].Server == "" || c.AuthInfos[at.AuthInfo].TokenFile == "" {
			t.Errorf("%s has no server or no token: %v", what, m.Data)
		}
		return
	}
	if objects["DaemonSet kube-system kubeveil-cleanup"] != "" {
		return
	}
	errtest.Must(t, yaml.Unmarshal([]byte(objects["ConfigMap kube-system kubeveil"]), &m))
	c, err := config.Parse("node-1", []byte(m.Data["veild.yaml"]), []byte("apiVersion: "+
		"kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nnetworking: {podSubnet: 10.244.0.0/16, "+
		"serviceSubnet: 10.96.0.0/12}\n"))
	if err != nil || c.Source.Kubeconfig != "/etc/kubeveil/kubeconfig" {
		t.Errorf("%s: %v, %+v", what, err, c.Source)
	}
}
