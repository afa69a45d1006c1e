package main

import (
	"testing"

	"github.com/kubeveil/kubeveil/pkg/pod"
)

func TestWorkloadIsReadFromArguments(t *testing.T) {
	whole := "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;" +
		"K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=6b1f"
	for args, want := range map[string]pod.Workload{
		"":    {},
		whole: {Namespace: "shop", Name: "web-0", UID: "6b1f"},
		"K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0": {}, // no UID
		whole + ";broken": {},
		"OTHER=x;" + whole[len("IgnoreUnknown=1;"):]: {Namespace: "shop", Name: "web-0",
			UID: "6b1f"},
	} {
		if got := workload(args); got != want {
			t.Errorf("%q: %+v, want %+v", args, got, want)
		}
	}
}
