package node_test

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/e2e/lab"
)

// storeGoesOn: the API server itself refuses a state that goes back, from any writer.
func storeGoesOn(ctx context.Context, t *testing.T, l *lab.Lab, s *kubestore.Store) {
	if err := s.Create(ctx, newState("pvc-on", "n")); err != nil {
		t.Fatal(err)
	}
	_, r, err := s.Get(ctx, "pvc-on")
	if err != nil {
		t.Fatal(err)
	}

	ready := readyState("pvc-on", "n")
	ready.Epoch = 5
	r, err = s.Update(ctx, ready, r)
	if err != nil {
		t.Fatal(err)
	}

	for what, back := range map[string]func(*volume.State){
		"a phase that goes back": func(st *volume.State) {
			st.Phase, st.Epoch, st.PendingEpoch = volume.Formatting, 0, 0
		},
		"content that is unmade":   func(st *volume.State) { st.Content = volume.Unmade },
		"another uuid":             func(st *volume.State) { st.UUID = crypt.UUID{2} },
		"no uuid":                  func(st *volume.State) { *st = newState("pvc-on", "n") },
		"another device":           func(st *volume.State) { st.Device = "serial:T" },
		"an epoch that goes back":  func(st *volume.State) { st.Epoch = 4 },
		"a volume that is smaller": func(st *volume.State) { st.Payload = 4096 },
	} {
		st := ready
		back(&st)
		if _, err := s.Update(ctx, st, r); err == nil {
			t.Fatalf("%s was accepted", what)
		}
	}

	// What our own program refuses before it is sent.
	c := l.Control.Dynamic.Resource(kubestore.VeilVolumes)
	for what, patch := range map[string]string{
		"a pending epoch after the next": `{"status":{"pendingEpoch":9}}`,
		"a ready volume without a key":   `{"status":{"key":null}}`,
		"a deleted one with a key":       `{"status":{"phase":"Deleted"}}`,
		"no status":                      `{"status":null}`,
	} {
		_, err := c.Patch(ctx, "pvc-on", types.MergePatchType, []byte(patch), metav1.PatchOptions{},
			"status")
		if err == nil || !strings.Contains(err.Error(), "status") {
			t.Errorf("%s: %v", what, err)
		}
	}

	// All that a volume goes through is accepted.
	for _, on := range []func(*volume.State){
		func(st *volume.State) { st.PendingEpoch = 6 },
		func(st *volume.State) { st.Epoch, st.PendingEpoch, st.Writer = 6, 0, "" },
		func(st *volume.State) { st.PendingPayload = 3 * 4096 },
		func(st *volume.State) { st.Payload, st.PendingPayload = 3*4096, 0 },
		func(st *volume.State) { st.Key.KeyID = "another" },
		func(st *volume.State) {
			st.Phase, st.Writer = volume.Deleted, ""
			st.Key = newState("x", "n").Key
		},
	} {
		on(&ready)
		if r, err = s.Update(ctx, ready, r); err != nil {
			t.Fatalf("%+v: %v", ready, err)
		}
	}
}
