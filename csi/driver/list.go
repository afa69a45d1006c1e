package driver

import (
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/volume"
)

// ListVolumes implements csi.ControllerServer. It lists the volumes of all nodes.
func (d *Driver) ListVolumes(ctx context.Context,
	r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	states, next, err := d.list(ctx, r.GetStartingToken(), int(r.GetMaxEntries()),
		func(st volume.State) bool { return !st.Request.Snapshot })
	if err != nil {
		return nil, err
	}
	out := &csi.ListVolumesResponse{NextToken: next}
	for _, st := range states {
		out.Entries = append(out.Entries, &csi.ListVolumesResponse_Entry{Volume: d.describe(st)})
	}
	return out, nil
}

// tokenPrefix is the prefix of a page token. The name of the previous page's last volume follows.
const tokenPrefix = "after/"

// list returns a page of at most most matching volumes in the order of their names, and the token
// of the next page. 0 for most means no limit. An empty next means that no page follows.
func (d *Driver) list(ctx context.Context, token string, most int,
	match func(volume.State) bool) (page []volume.State, next string, err error) {
	after, ok := strings.CutPrefix(token, tokenPrefix)
	if token != "" && !ok {
		return nil, "", &coded{codes.Aborted, "starting token " + token + " is not of this driver"}
	}
	if most < 0 {
		return nil, "", invalid("max entries %d", most)
	}
	all, err := d.anySet.Store.List(ctx)
	if err != nil && len(all) == 0 {
		return nil, "", err
	}
	if err != nil {
		d.Log.Warn("states of volumes were left out of a list", "error", err)
	}
	slices.SortFunc(all, func(a, b volume.State) int { return strings.Compare(a.Volume, b.Volume) })
	for _, st := range all {
		if st.Volume <= after || st.Phase == volume.Deleted || !match(st) {
			continue
		}
		if most > 0 && len(page) == most {
			return page, tokenPrefix + page[most-1].Volume, nil
		}
		page = append(page, st)
	}
	return page, "", nil
}
