package storage_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt/dmcrypttest"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/mount/mounttest"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/apiserver"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/manifesttest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// sidecarsEnv names the environment variable that, when set, runs the test of the side-cars: the
// folder with the programs of the image kubeveil-csi.
const sidecarsEnv = "KUBEVEIL_SIDECARS"

// sidecars are the side-cars of one node, at work beside a driver without a kernel.
type sidecars struct {
	*lab.Lab
	t            *testing.T
	node, socket string
	bin          string
}

// The side-cars run with the arguments and rights of the manifests and no others, on a real API
// server. A claim becomes a volume of the node, grows, has a snapshot from which another is made,
// and goes.
func TestSidecars(t *testing.T) {
	bin := os.Getenv(sidecarsEnv)
	if bin == "" {
		nettest.Skip(t, nettest.Short, "the side-cars take minutes to build; `make "+
			"image-csi`, then "+sidecarsEnv+"=$PWD/out/images/root-amd64/usr/local/bin runs it")
	}

	ctx, l := nodetest.NewLab(t, lab.Options{NoBoot: true, Nodes: 1})
	installCSI(ctx, t, l)
	snapshots := filepath.Join(nodetest.Root(t), "manifests/components/snapshots")
	for _, m := range append(manifesttest.Kustomized(t, filepath.Join(snapshots, "crd")),
		manifesttest.Kustomized(t, snapshots)...) {
		if err := apply(ctx, l, m.Object); err != nil {
			t.Fatalf("%s: %v", m.Path, err)
		}
	}

	s := &sidecars{Lab: l, t: t, node: l.Nodes()[0].Name, bin: bin,
		socket: filepath.Join(l.Control.Host().Dir, "csi.sock")}
	// As the kubelet does when the driver registers.
	label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, driver.TopologyKey, s.node)
	if _, err := l.Control.Client.CoreV1().Nodes().Patch(ctx, s.node, types.MergePatchType, label,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}

	s.serveDriver(ctx)
	s.start(ctx, filepath.Join(nodetest.Root(t), csiManifests, "driver/daemonset.yaml"), csiAccount)
	s.start(ctx, filepath.Join(snapshots, "daemonset.yaml"), csiAccount)
	s.start(ctx, filepath.Join(snapshots, "snapshot-controller.yaml"), "snapshot-controller")
	t.Run("capacity", func(t *testing.T) { s.capacity(ctx, t) })
	pv := s.provision(ctx, "data", nil)
	s.bind(ctx, pv)
	t.Run("veilctl volume", func(t *testing.T) { s.veilctl(ctx, t, pv.Name) })
	t.Run("expand", func(t *testing.T) { s.expand(ctx, t, pv) })
	t.Run("snapshot", func(t *testing.T) { s.snapshot(ctx, t) })

	t.Run("delete", func(t *testing.T) { s.remove(ctx, t, pv) })
}

// serveDriver serves the driver of the node on a socket, with the rights of its account.
func (s *sidecars) serveDriver(ctx context.Context) {
	s.t.Helper()
	cfg := csiToken(ctx, s.t, s.Lab, s.node)
	store, err := kubestore.NewForConfig(cfg, s.node)
	errtest.Must(s.t, err)
	cluster, err := store.Cluster(ctx)
	errtest.Must(s.t, err)
	key := filepath.Join(s.t.TempDir(), "kek")
	errtest.Must(s.t, keyring.CreateFile(key))

	keys, err := keyring.File(key)
	errtest.Must(s.t, err)

	log := slog.New(slog.NewTextHandler(s.t.Output(), nil))
	files := &backend.Files{Dir: s.t.TempDir(), Sparse: true}
	s.t.Cleanup(func() { // What a test that failed leaves is on loop devices.
		left, _ := filepath.Glob(filepath.Join(files.Dir, "*.img"))
		for _, path := range left {
			errtest.Check(s.t, files.Delete(context.WithoutCancel(ctx),
				strings.TrimSuffix(filepath.Base(path), ".img")))
		}
	})

	set := volume.NewSet(volume.Config{Cluster: cluster, Node: s.node, Store: store,
		Engine: dmcrypttest.New(), Backend: files, Log: log})
	d, err := driver.New(driver.Config{Node: s.node, Version: "v0",
		Sets: map[string]*volume.Set{driver.BackendFile: set},
		Keys: map[string]keyring.Provider{keyring.NameKMS: likeKMS{keys}}, Mounts: &mounttest.System{},
		Log: log})
	errtest.Must(s.t, err)

	listener, err := driver.Listen(s.socket)
	errtest.Must(s.t, err)

	server := driver.NewServer(log, func(driver.Call) {})
	d.Register(server)
	// The test's context ends before the cleanup, and side-cars end when they lose their driver.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- driver.Serve(ctx, server, listener) }()
	s.t.Cleanup(func() {
		cancel()
		errtest.Check(s.t, <-done)
	})
}

// start starts the side-cars of a manifest with the arguments of its container.
func (s *sidecars) start(ctx context.Context, path, account string) {
	s.t.Helper()
	// A Deployment has the same template in the same place.
	var set appsv1.DaemonSet
	errtest.Must(s.t, runtime.DefaultUnstructuredConverter.FromUnstructured(manifesttest.Read(s.t,
		path).Object.Object, &set))

	pod := nodetest.DaemonPod(ctx, s.t, s.Lab, account, s.node)
	token := nodetest.NewToken(ctx, s.t, s.Lab, account, pod)
	for _, c := range set.Spec.Template.Spec.Containers {
		if len(c.Command) == 0 {
			continue // The driver itself.
		}
		config := filepath.Join(s.Control.Host().Dir, c.Name+".kubeconfig")
		filetest.Write(s.t, config, s.kubeconfig(token), 0o600)

		args := []string{"NODE_NAME=" + s.node, "NAMESPACE=kube-system", "POD_NAME=" + pod.Name,
			filepath.Join(s.bin, filepath.Base(c.Command[0])), "--kubeconfig=" + config, "--v=4"}
		for _, a := range c.Args {
			args = append(args, strings.NewReplacer("/csi/csi.sock", s.socket,
				"$(NODE_NAME)", s.node).Replace(a))
			if strings.HasPrefix(a, "--leader-election=") {
				args = append(args, "--leader-election-namespace=kube-system")
			}
		}

		p, err := s.Control.Host().Start(ctx, "/usr/bin/env", args...)
		errtest.Must(s.t, err)

		s.t.Cleanup(func() {
			if !p.Running() {
				s.t.Errorf("%s has ended by itself: its output is in %s", c.Name,
					s.Control.Host().Dir)
			}
			p.Kill(context.WithoutCancel(ctx))
		})
	}
}

func (s *sidecars) kubeconfig(token string) []byte {
	text, err := apiserver.Kubeconfig(s.server(), clientcmdapi.AuthInfo{Token: token})
	errtest.Must(s.t, err)
	return text
}

// server is the API server as programs on its host reach it.
func (s *sidecars) server() clientcmdapi.Cluster {
	return clientcmdapi.Cluster{Server: "https://127.0.0.1:6443",
		CertificateAuthority: filepath.Join(s.Control.Host().Dir, "pki/ca.crt")}
}

// within waits for a condition; the side-cars are not the quickest.
func (s *sidecars) within(ctx context.Context, t *testing.T, what string, cond func() error) {
	t.Helper()
	if err := lab.Until(ctx, 90*time.Second, cond); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func (s *sidecars) capacity(ctx context.Context, t *testing.T) {
	s.within(ctx, t, "capacity of the node for each class", func() error {
		list, err := s.Control.Client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).List(
			ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		byClass := map[string]bool{}
		for _, c := range list.Items {
			byClass[c.StorageClassName] = c.NodeTopology.MatchLabels[driver.TopologyKey] ==
				s.node && c.Capacity != nil && c.Capacity.Value() > 0
		}
		if !byClass["kubeveil"] || !byClass["kubeveil-block"] {
			return fmt.Errorf("there is %v", byClass)
		}
		return nil
	})
}

// provision makes a claim whose pod was scheduled to the node, and returns the volume that is made
// for it. from may be nil.
func (s *sidecars) provision(ctx context.Context, name string,
	from *corev1.TypedLocalObjectReference) *corev1.PersistentVolume {
	s.t.Helper()
	class := "kubeveil"
	claim := &corev1.PersistentVolumeClaim{
		// As the scheduler and the controller manager would.
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			"volume.kubernetes.io/selected-node":       s.node,
			"volume.kubernetes.io/storage-provisioner": driver.Name}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, DataSource: from,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("128Mi")}},
		},
	}

	claim, err := s.Control.Client.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim,
		metav1.CreateOptions{})
	errtest.Must(s.t, err)

	var pv *corev1.PersistentVolume
	s.within(ctx, s.t, "a volume for the claim", func() error {
		pv, err = s.Control.Client.CoreV1().PersistentVolumes().Get(ctx,
			"veil-"+s.node+"-"+string(claim.UID), metav1.GetOptions{})
		return err
	})
	o, err := s.Control.Dynamic.Resource(kubestore.VeilVolumes).Get(ctx, pv.Name,
		metav1.GetOptions{})
	errtest.Must(s.t, err)
	if node, _, _ := unstructured.NestedString(o.Object, "spec", "node"); node != s.node ||
		pv.Spec.CSI.VolumeHandle != pv.Name {
		s.t.Errorf("the volume is of node %q, handle %q", node, pv.Spec.CSI.VolumeHandle)
	}

	return pv
}

// bind does what the controller manager would.
func (s *sidecars) bind(ctx context.Context, pv *corev1.PersistentVolume) {
	s.t.Helper()
	claims := s.Control.Client.CoreV1().PersistentVolumeClaims("default")
	claim, err := claims.Get(ctx, pv.Spec.ClaimRef.Name, metav1.GetOptions{})
	if err == nil {
		claim.Spec.VolumeName = pv.Name
		claim, err = claims.Update(ctx, claim, metav1.UpdateOptions{})
	}
	if err == nil {
		claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound,
			Capacity: pv.Spec.Capacity, AccessModes: pv.Spec.AccessModes}
		_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	}
	errtest.Must(s.t, err)
	s.phase(ctx, pv.Name, corev1.VolumeBound)
}

// phase sets the phase of a volume like the controller manager, and removes the protection of a
// released one.
func (s *sidecars) phase(ctx context.Context, name string, phase corev1.PersistentVolumePhase) {
	s.t.Helper()
	pvs := s.Control.Client.CoreV1().PersistentVolumes()
	s.within(ctx, s.t, "phase of the volume", func() error {
		pv, err := pvs.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pv.Status.Phase = phase
		if pv, err = pvs.UpdateStatus(ctx, pv, metav1.UpdateOptions{}); err != nil ||
			phase != corev1.VolumeReleased {
			return err
		}
		pv.Finalizers = slices.DeleteFunc(pv.Finalizers,
			func(f string) bool { return f == "kubernetes.io/pv-protection" })
		_, err = pvs.Update(ctx, pv, metav1.UpdateOptions{})
		return err
	})
}

// veilctl lists the volume as well, shows it, and reports why a key that is not there yet cannot be
// wrapped again.
func (s *sidecars) veilctl(ctx context.Context, t *testing.T, name string) {
	config := filepath.Join(s.Control.Host().Dir, "reader.kubeconfig")
	text, err := apiserver.Kubeconfig(s.server(), clientcmdapi.AuthInfo{
		ClientCertificateData: s.Control.Config.CertData, ClientKeyData: s.Control.Config.KeyData})
	errtest.Must(t, err)
	filetest.Write(t, config, text, 0o600)

	for _, c := range []struct {
		args, want string
		wrong      bool
	}{
		{"list", "default/data", false},
		{"show " + name, "backend=file", false},
		{"list -o json", `"well": true`, false},
		{"rewrap " + name, "no key in phase New", true},
		{"show pvc-none", "there is no volume pvc-none", true},
		{"recover " + name, "nothing to open", true},
	} {
		args := append([]string{"volume"}, strings.Fields(c.args)...)
		cmd := s.Control.Host().Command(ctx, s.Program("veilctl"),
			append(args, "--kubeconfig", config)...)
		if out, err := cmd.CombinedOutput(); (err != nil) != c.wrong ||
			!strings.Contains(string(out), c.want) {
			t.Errorf("veilctl volume %s: %v\n%s", c.args, err, out)
		}
	}
}

func (s *sidecars) expand(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume) {
	patch := []byte(`{"spec":{"resources":{"requests":{"storage":"256Mi"}}}}`)
	if _, err := s.Control.Client.CoreV1().PersistentVolumeClaims("default").Patch(ctx, "data",
		types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.within(ctx, t, "the volume may grow", func() error {
		now, err := s.Control.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name,
			metav1.GetOptions{})
		if err == nil && now.Spec.Capacity.Storage().Value() != 256<<20 {
			err = fmt.Errorf("it has %v", now.Spec.Capacity)
		}
		return err
	})
}

// likeKMS is a provider with the name that the classes of the manifests have. A copy of a volume
// keeps its source's provider, which is known by its name.
type likeKMS struct{ keyring.Provider }

// Name implements keyring.Provider.
func (likeKMS) Name() string { return keyring.NameKMS }

// Wrap implements keyring.Provider.
func (k likeKMS) Wrap(ctx context.Context, b keyring.Binding, key *keyring.Secret) (
	keyring.Wrapped, error) {
	w, err := k.Provider.Wrap(ctx, b, key)
	w.Provider = k.Name()
	return w, err
}

// Unwrap implements keyring.Provider.
func (k likeKMS) Unwrap(ctx context.Context, b keyring.Binding, w keyring.Wrapped) (
	*keyring.Secret, error) {
	w.Provider = k.Provider.Name()
	return k.Provider.Unwrap(ctx, b, w)
}

// snapshot makes one, makes a volume from it, and deletes both.
func (s *sidecars) snapshot(ctx context.Context, t *testing.T) {
	snapshots := s.Control.Dynamic.Resource(
		schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1",
			Resource: "volumesnapshots"}).Namespace("default")
	_, err := snapshots.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
		"metadata": map[string]any{"name": "first"},
		"spec": map[string]any{"volumeSnapshotClassName": "kubeveil",
			"source": map[string]any{"persistentVolumeClaimName": "data"}},
	}}, metav1.CreateOptions{})
	errtest.Must(t, err)

	s.within(ctx, t, "the snapshot is ready", func() error {
		o, err := snapshots.Get(ctx, "first", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ready, _, _ := unstructured.NestedBool(o.Object, "status", "readyToUse"); !ready {
			return fmt.Errorf("its status is %v", o.Object["status"])
		}
		return nil
	})

	group := "snapshot.storage.k8s.io"
	restored := s.provision(ctx, "restored",
		&corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "first"})
	if o, err := s.Control.Dynamic.Resource(kubestore.VeilVolumes).Get(ctx, restored.Name,
		metav1.GetOptions{}); err != nil {
		t.Error(err)
	} else if source, _, _ := unstructured.NestedString(o.Object, "spec",
		"source"); !strings.HasPrefix(source, "snap-") {
		t.Errorf("the volume was made from %q", source)
	}

	s.bind(ctx, restored) // While a claim waits for its volume, the snapshot is kept.
	s.remove(ctx, t, restored)
	if err := snapshots.Delete(ctx, "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	s.within(ctx, t, "the snapshot goes, with its state", func() error {
		_, err := snapshots.Get(ctx, "first", metav1.GetOptions{})
		left, listed := s.Control.Dynamic.Resource(kubestore.VeilVolumes).List(ctx,
			metav1.ListOptions{})
		if listed != nil {
			return listed
		}
		for _, o := range left.Items {
			if strings.HasPrefix(o.GetName(), "snap-") {
				return fmt.Errorf("%s is there", o.GetName())
			}
		}
		if !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("it is there"), err)
		}
		return nil
	})
}

func (s *sidecars) remove(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume) {
	s.phase(ctx, pv.Name, corev1.VolumeReleased)
	s.within(ctx, t, "the volume goes, with its state", func() error {
		_, err := s.Control.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name,
			metav1.GetOptions{})
		_, gone := s.Control.Dynamic.Resource(kubestore.VeilVolumes).Get(ctx, pv.Name,
			metav1.GetOptions{})
		if !apierrors.IsNotFound(err) || !apierrors.IsNotFound(gone) {
			return errors.Join(errors.New("it is there"), err, gone)
		}
		return nil
	})
}
