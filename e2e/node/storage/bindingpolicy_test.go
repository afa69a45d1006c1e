package storage_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// volumesOfOthers: a node makes only its own PersistentVolumes, of a class of the driver and named
// by their claims.
func volumesOfOthers(ctx context.Context, t *testing.T, l *lab.Lab,
	mine corev1client.PersistentVolumeInterface, own, other string) {
	ebs := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "ebs"},
		Provisioner: "csi.example.com"}
	if _, err := l.Control.Client.StorageV1().StorageClasses().Create(ctx, ebs,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	for what, c := range map[string]struct {
		edit func(*corev1.PersistentVolume)
		why  string
	}{
		"of another driver's class": {func(pv *corev1.PersistentVolume) {
			pv.Spec.StorageClassName = "ebs"
		}, "of class \"ebs\", which is not of the driver"},
		"of no class": {func(pv *corev1.PersistentVolume) { pv.Spec.StorageClassName = "" },
			"of class \"\", which is not of the driver"},
		"for any claim": {func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil },
			"is not named veil-" + own + "-"},
		"for a claim of that name": {func(pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef.UID = ""
		}, "is not named veil-" + own + "-"},
		"for another claim": {func(pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef.UID = "uid-other"
		}, "is not named veil-" + own + "-"},
		"with the name of another node's": {func(pv *corev1.PersistentVolume) {
			pv.Name = "veil-" + other + "-uid-theirs"
			pv.Spec.CSI.VolumeHandle = pv.Name
		}, "is not named veil-" + own + "-"},
		"with the name of another driver's": {func(pv *corev1.PersistentVolume) {
			pv.Name = "pvc-uid-theirs"
			pv.Spec.CSI.VolumeHandle = pv.Name
		}, "is not named veil-" + own + "-"},
		"of another volume": {func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.VolumeHandle = "veil-" + other + "-uid-theirs"
		}, "volumeHandle differs"},
		"on another node": {func(pv *corev1.PersistentVolume) {
			pv.Spec.NodeAffinity = persistentVolume("x", other).Spec.NodeAffinity
		}, "is not of node " + own},
		"of another driver": {func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.Driver = "csi.example.com"
		}, "not of the driver"},
	} {
		pv := madeFor("uid-theirs", own)
		c.edit(pv)
		// The policies see a class, and are in force, a moment after it was made.
		if err := lab.Until(ctx, waitForPolicy, func() error {
			_, err := mine.Create(ctx, pv.DeepCopy(), metav1.CreateOptions{DryRun: dryRun})
			return wantForbidden(err, c.why)
		}); err != nil {
			t.Errorf("create one %s: %v", what, err)
		}
	}
}

// dryRun has the API server admit a request and store nothing.
var dryRun = []string{metav1.DryRunAll}

// madeFor returns the PersistentVolume that the provisioner of a node makes for a claim.
func madeFor(uid types.UID, node string) *corev1.PersistentVolume {
	pv := persistentVolume("veil-"+node+"-"+string(uid), node)
	pv.Spec.ClaimRef.UID, pv.Spec.StorageClassName = uid, "kubeveil"
	return pv
}

// binding: Kubernetes binds a claim to any PersistentVolume that names it. So a node's token could
// draw the pods of any claim to its node, if the claim's driver and node were not compared.
func binding(ctx context.Context, t *testing.T, l *lab.Lab, own, other string) {
	claims := l.Control.Client.CoreV1().PersistentVolumeClaims("default")
	for i, c := range []struct {
		what, driver, node string
		// name returns the name of the volume for the claim's uid.
		name func(uid string) string
		why  string
	}{
		{"of another driver", "csi.example.com", own, nil, "the claim's class is not"},
		{"of no driver yet", "", "", nil, "the claim's class is not"},
		{"on another node", driver.Name, other, nil, "of another node"},
		{"on no node yet", driver.Name, "", nil, "of another node"},
		{"that the provisioner made", driver.Name, own, nil, ""},
		{"another driver's, with its volume", "csi.example.com", "",
			func(uid string) string { return "pvc-" + uid }, ""},
		{"whose volume a person brings", "", "",
			func(string) string { return "veil-" + own + "-uid-of-an-earlier-claim" }, ""},
	} {
		made, err := claims.Create(ctx, claim(fmt.Sprintf("binding-%d", i), c.driver, c.node),
			metav1.CreateOptions{})
		errtest.Must(t, err)
		if c.name == nil {
			c.name = func(uid string) string { return "veil-" + own + "-" + uid }
		}

		// As the controller manager does.
		made.Spec.VolumeName = c.name(string(made.UID))
		bind := func() error {
			_, err := claims.Update(ctx, made, metav1.UpdateOptions{DryRun: dryRun})
			return err
		}
		if c.why == "" {
			if err := bind(); err != nil {
				t.Errorf("bind a claim %s: %v", c.what, err)
			}
		} else if err := lab.Until(ctx, waitForPolicy, func() error {
			return wantForbidden(bind(), c.why)
		}); err != nil {
			t.Errorf("bind a claim %s: %v", c.what, err)
		}
	}
}
