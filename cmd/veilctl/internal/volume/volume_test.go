package volume

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// run runs a command line of a veilctl with the verbs about volumes alone.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	return verbtest.Run(ctx, args, out, progress, Command())
}

// aVolume is a ready volume on node-1.
func aVolume(name string) volume.State {
	return volume.State{
		Volume: name, Cluster: "c", Request: volume.Request{Node: "node-1", Backend: "file"},
		Phase: volume.Ready, Payload: 1 << 30,
		Key:  keyring.Wrapped{Provider: "kms", KeyID: "old", Blob: []byte("wrapped-key-canary")},
		UUID: crypt.UUID{1}, Device: "file:1",
		Content: volume.Made, Epoch: 3,
	}
}

func TestVolumesAreAssessed(t *testing.T) {
	now := time.Now()
	a := around{now: now, nodes: map[string]bool{"node-1": true},
		users: map[string]string{"pvc-1": "default/data"}, snapshots: true}
	old, young := now.Add(-time.Hour), now.Add(-time.Second)
	with := func(change func(*kubestore.Object)) kubestore.Object {
		o := kubestore.Object{State: aVolume("pvc-1"), Created: old}
		change(&o)
		return o
	}
	nobody := a
	nobody.users = nil

	for situation, c := range map[string]struct {
		o    kubestore.Object
		a    around
		want []string
	}{
		"well": {with(func(*kubestore.Object) {}), a, nil},
		"just made": {with(func(o *kubestore.Object) { o.Created = young }), nobody,
			nil},
		"nobody has it": {with(func(*kubestore.Object) {}), nobody,
			[]string{"it has no owner, because no"}},
		"tombstone that nobody has": {with(func(o *kubestore.Object) {
			o.State.Phase = volume.Deleted
		}), nobody, []string{"tombstone"}},
		"deleted, but wanted": {with(func(o *kubestore.Object) {
			o.State.Phase = volume.Deleted
		}), a, []string{"default/data still refers to it"}},
		"node gone": {with(func(o *kubestore.Object) {
			o.State.Request.Node = "node-9"
		}), a, []string{"node node-9 is gone"}},
		"open on a node that is gone": {with(func(o *kubestore.Object) {
			o.State.Writer = "node-9"
		}), a,
			[]string{"open on node node-9"}},
		"refused": {with(func(o *kubestore.Object) { o.Err = volume.ErrState }), a,
			[]string{"is inconsistent"}},
		"snapshot where there are no definitions": {with(func(o *kubestore.Object) {
			o.State.Request.Snapshot = true
		}),
			around{now: now, nodes: a.nodes}, nil},
	} {
		r := assessVolumes([]kubestore.Object{c.o}, c.a)
		got := r.Volumes[0].Problems
		if r.Well != (len(c.want) == 0) || len(got) != len(c.want) {
			t.Errorf("%s: well %v, problems %q; want %q", situation, r.Well, got, c.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("%s: %q, want %q", situation, got[i], c.want[i])
			}
		}
	}

	missing := assessVolumes(nil, a)
	if missing.Well || len(missing.Volumes) != 1 ||
		!strings.Contains(missing.Volumes[0].Problems[0], "VeilVolume is missing") {
		t.Errorf("a volume without state: %+v", missing)
	}
}

func TestVolumesAreShownWithoutKeys(t *testing.T) {
	o := kubestore.Object{State: aVolume("pvc-1"),
		Asked: kubestore.Asked{Rewrap: "x", TakeOver: &kubestore.TakeOver{From: "node-1",
			To: "node-2"}}}
	a := around{now: time.Now(), nodes: map[string]bool{"node-1": true},
		users: map[string]string{"pvc-1": "default/data", "pvc-2": "default/more"}}
	var out bytes.Buffer
	c := verb.Call{Ctx: t.Context(), Out: &out}
	r := assessVolumes([]kubestore.Object{o}, a)
	errtest.Must(t, errors.Join(showVolumes(&out, r), showVolume(c, r.Volumes[0]),
		verb.PrintJSON(&out, r)))
	for _, want := range []string{"pvc-1", "1 GiB", "default/data", "kms old",
		"taken over from node node-1 by node node-2", "PROBLEM: pvc-2: its VeilVolume is missing"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, &out)
		}
	}
	for _, never := range []string{"wrapped-key-canary", "d3JhcHBlZC1rZXktY2FuYXJ5"} {
		if strings.Contains(out.String(), never) {
			t.Errorf("it shows %q:\n%s", never, &out)
		}
	}
}

// veilVolume returns the VeilVolume object for a state.
func veilVolume(t *testing.T, st volume.State) *unstructured.Unstructured {
	t.Helper()
	text, err := json.Marshal(st)
	errtest.Must(t, err)
	status := map[string]any{}
	errtest.Must(t, json.Unmarshal(text, &status))
	for _, field := range []string{"volume", "cluster", "request"} {
		delete(status, field)
	}
	status["payload"], status["epoch"] = st.Payload, int64(st.Epoch)
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "csi.kubeveil.io/v1alpha1", "kind": "VeilVolume",
		"metadata": map[string]any{"name": st.Volume, "resourceVersion": "1"},
		"spec": map[string]any{"cluster": st.Cluster, "node": st.Request.Node,
			"backend": st.Request.Backend}, "status": status,
	}}
}

// fakeStore returns a store with states and a fake API server.
func fakeStore(t *testing.T, states ...volume.State) *kubestore.Store {
	var objects []runtime.Object
	for _, s := range states {
		objects = append(objects, veilVolume(t, s))
	}
	kinds := map[schema.GroupVersionResource]string{kubestore.VeilVolumes: "VeilVolumeList"}
	return kubestore.NewForClient(fake.NewSimpleDynamicClientWithCustomListKinds(
		runtime.NewScheme(), kinds, objects...), "node-1")
}

func TestRewrapIsAskedForAndAwaited(t *testing.T) {
	secret, unmade := aVolume("pvc-secret"), volume.State{Volume: "pvc-new", Cluster: "c",
		Phase: volume.New, Payload: 4096, Content: volume.Unmade}
	secret.Key.Provider = keyring.NameSecret
	s := fakeStore(t, aVolume("pvc-1"), aVolume("pvc-2"), secret, unmade)
	names, err := withKeys(t.Context(), s)
	if err != nil || !cmp.Equal(names, []string{"pvc-1", "pvc-2"}) {
		t.Fatalf("all are %q, %v", names, err)
	}

	reports := askRewraps(t.Context(), s, append(names, "pvc-secret", "pvc-new", "pvc-none"))
	for i, want := range []string{"", "", "previousKey", "no key in phase New", "no such volume"} {
		if !strings.Contains(reports[i].Error, want) || (want == "") != (reports[i].Error == "") {
			t.Errorf("%s: %q, want %q", reports[i].Volume, reports[i].Error, want)
		}
	}

	asked := map[string]string{}
	objects, err := s.Objects(t.Context())
	for _, o := range objects {
		if o.Asked.Rewrap != "" {
			asked[o.State.Volume] = o.Asked.Rewrap
		}
	}

	if err != nil || len(asked) != 2 {
		t.Fatalf("asked for are %v, %v", asked, err)
	}

	// The work of the node.
	st, r, err := s.Get(t.Context(), "pvc-1")
	errtest.Must(t, err)

	st.Key.KeyID = "new"
	if _, err = s.Update(t.Context(), st, r); err == nil {
		err = s.RewrapDone(t.Context(), "pvc-1", asked["pvc-1"])
	}
	errtest.Must(t, err)

	waitRewrapped(t.Context(), s, reports, time.Millisecond)
	var out bytes.Buffer
	if err := showRewrapped(verb.Call{Ctx: t.Context(), Out: &out}, reports, true); !errors.Is(err,
		verb.ErrWrong) {
		t.Errorf("one is not done: %v", err)
	}

	for _, want := range []string{"pvc-1       re-wrapped: kms old → kms new",
		"pvc-2       not done yet: node node-1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, &out)
		}
	}
}

// saved saves a volume's state, in the form of kubectl's output, and its key-encryption key in
// files. It returns the paths of both files, the volume's key and the state.
func saved(t *testing.T) (state, kek string, data *keyring.Secret, st volume.State) {
	t.Helper()
	dir := t.TempDir()
	kek, state = filepath.Join(dir, "kek"), filepath.Join(dir, "pvc-1.json")
	errtest.Must(t, keyring.CreateFile(kek))
	p, err := keyring.File(kek)
	errtest.Must(t, err)
	if data, err = crypt.NewDataKey(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(data.Wipe)
	st = aVolume("pvc-1")
	if st.Key, err = p.Wrap(t.Context(), st.Binding(), data); err != nil {
		t.Fatal(err)
	}

	o := veilVolume(t, st)
	o.SetCreationTimestamp(metav1.Now())
	text, err := o.MarshalJSON()
	errtest.Must(t, err)
	filetest.Write(t, state, text, 0o600)

	return state, kek, data, st
}

func TestRecover(t *testing.T) {
	nettest.NeedRoot(t)
	state, kek, data, st := saved(t)
	key, err := crypt.RecoveryKey(data, st.Binding())
	errtest.Must(t, err)
	defer key.Wipe()
	header := filepath.Join(t.TempDir(), "header")

	said := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if err := run(t.Context(), append([]string{"volume", "recover", "--state", state}, args...),
			&out, io.Discard); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out.String()
	}
	for _, text := range []string{said(), said("pvc-1", "--key-file", kek, "--header", header)} {
		if strings.Contains(text, string(key.Bytes())) ||
			!strings.Contains(text, "cryptsetup open") ||
			!strings.Contains(text, csiVolumes+"/pvc-1.img") {
			t.Errorf("without --show-key it says:\n%s", text)
		}
	}

	if text := said("--key-file", kek, "--show-key"); !strings.Contains(text,
		"recovery key "+string(key.Bytes())) {
		t.Errorf("with --show-key it says:\n%s", text)
	}
	want, err := crypt.Header(data, st.Identity())
	errtest.Must(t, err)
	if got, err := os.ReadFile(header); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the header that was exported is another: %d bytes, %v", len(got), err)
	}
	if info, err := os.Stat(header); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the header: %v, %v", info.Mode(), err)
	}
}

// Without a cluster, the content of the Secret with the key-encryption key can be read from a file.
func TestRecoverByASecretThatWasSaved(t *testing.T) {
	nettest.NeedRoot(t)
	_, kek, data, st := saved(t)
	text := filetest.Read(t, kek)
	p, err := keyring.FromSecrets(map[string]string{keyring.SecretKey: string(text)})
	errtest.Must(t, err)
	if st.Key, err = p.Wrap(t.Context(), st.Binding(), data); err != nil {
		t.Fatal(err)
	}

	o := veilVolume(t, st)
	o.SetCreationTimestamp(metav1.Now())
	object, err := o.MarshalJSON()
	errtest.Must(t, err)
	state := filepath.Join(t.TempDir(), "state")
	filetest.Write(t, state, object, 0o600)

	key, err := crypt.RecoveryKey(data, st.Binding())
	errtest.Must(t, err)
	defer key.Wipe()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"volume", "recover", "--state", state, "--key-file", kek,
		"--show-key"}, &out, io.Discard); err != nil ||
		!strings.Contains(out.String(), string(key.Bytes())) {
		t.Errorf("%v: %s", err, out.String())
	}
	err = run(t.Context(), []string{"volume", "recover", "--state", state, "--show-key"},
		io.Discard,
		io.Discard)
	if err == nil || !strings.Contains(err.Error(), "--secret NAMESPACE/NAME, or --key-file FILE") {
		t.Errorf("without either: %v", err)
	}
}

func TestRecoverRefuses(t *testing.T) {
	nettest.NeedRoot(t)
	state, kek, _, _ := saved(t)
	other := filepath.Join(t.TempDir(), "kek")
	there := filepath.Join(t.TempDir(), "there")
	errtest.Must(t, errors.Join(keyring.CreateFile(other), os.WriteFile(there, nil, 0o600)))

	for situation, c := range map[string]struct {
		args []string
		want string
	}{
		"no volume":              {nil, "name one volume"},
		"another volume's state": {[]string{"--state", state, "pvc-2"}, "is of volume pvc-1"},
		"no state":               {[]string{"--state", kek}, "kubectl get veilvolume"},
		"no key file":            {[]string{"--state", state, "--show-key"}, "--key-file"},
		"another key file": {[]string{"--state", state, "--key-file", other, "--show-key"},
			"wrapped by another key"},
		"a header that is there": {[]string{"--state", state, "--key-file", kek, "--header", there},
			"file exists"},
		"a verb that there is not": {[]string{"--what"}, "unknown flag: --what"},
	} {
		err := run(t.Context(), append([]string{"volume", "recover"}, c.args...), io.Discard,
			io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", situation, err, c.want)
		}
	}

	if err := run(t.Context(), []string{"volume"}, io.Discard, io.Discard); !errors.Is(err,
		verb.ErrUsage) || !strings.Contains(err.Error(), "list, show, rewrap, recover, destroy") {
		t.Errorf("veilctl volume: %v", err)
	}
	if err := run(t.Context(), []string{"volume", "rewrap"}, io.Discard,
		io.Discard); !errors.Is(err, verb.ErrUsage) {
		t.Errorf("veilctl volume rewrap: %v", err)
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB",
		1536: "1.5 KiB", 1 << 20: "1 MiB", 10 << 30: "10 GiB", 1 << 60: "1 EiB"} {
		if got := size(n); got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
}

func TestNoVolumeIsCompletedWithoutAnAPIServer(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	filetest.Write(t, kubeconfig, []byte(`clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`), 0o600)
	for _, v := range []string{"show", "destroy", "recover", "rewrap"} {
		line := "volume " + v + " --kubeconfig " + kubeconfig + " "
		if got := verbtest.Completed(t, line, Command()); got != ":4" {
			t.Errorf("%s is completed to %q", v, got)
		}
	}
}
