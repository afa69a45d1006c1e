package storage_test

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
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// storeGoesOn: the API server itself refuses a state that goes back, from any writer.
func storeGoesOn(ctx context.Context, t *testing.T, l *lab.Lab, s *kubestore.Store) {
	errtest.Must(t, s.Create(ctx, newState("pvc-on", "n")))
	_, r, err := s.Get(ctx, "pvc-on")
	errtest.Must(t, err)

	ready := readyState("pvc-on", "n")
	ready.Epoch = 5
	r, err = s.Update(ctx, ready, r)
	errtest.Must(t, err)

	// Each patch breaks one rule, so that its message shows that the rule is there.
	const key = "a volume has a key in the phases Formatting and Ready, and in no other"
	c := l.Control.Dynamic.Resource(kubestore.VeilVolumes)
	for what, refused := range map[string]struct{ patch, message string }{
		"a phase that goes back": {`{"phase":"Formatting"}`,
			"the phase of a volume never goes back"},
		"content that is unmade": {`{"content":"Unmade"}`,
			"content that was made is never unmade"},
		"another uuid": {`{"uuid":"` + crypt.UUID{2}.String() + `"}`,
			"the uuid of a volume cannot be changed"},
		"no uuid":        {`{"uuid":null}`, "the uuid of a volume cannot be changed"},
		"another device": {`{"device":"serial:T"}`, "the device that was chosen cannot be changed"},
		"no device":      {`{"device":null}`, "the device that was chosen cannot be changed"},
		"an epoch that goes back": {`{"epoch":4}`,
			"the epoch of a volume never goes back"},
		"a volume that is smaller": {`{"payload":4096}`, "a volume never becomes smaller"},
		"a pending epoch after the next": {`{"pendingEpoch":9}`,
			"the pending epoch is the one after the epoch"},
		"a ready volume without a key": {`{"key":null}`, key},
		"a deleted one with a key":     {`{"phase":"Deleted"}`, key},
		"no status": {`null`,
			"a status with the volume's key cannot be taken away"},
	} {
		_, err := c.Patch(ctx, "pvc-on", types.MergePatchType,
			[]byte(`{"status":`+refused.patch+`}`), metav1.PatchOptions{}, "status")
		if err == nil || !strings.Contains(err.Error(), refused.message) {
			t.Errorf("%s: %v, want %q", what, err, refused.message)
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
