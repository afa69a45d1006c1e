package explain_test

import "github.com/kubeveil/kubeveil/pkg/policy/policytest"

var (
	web                          = policytest.Web.Name
	shop, from, labelled         = policytest.Shop, policytest.From, policytest.Labelled
	rule, clusterPolicy, isolate = policytest.ClientRule, policytest.IngressPolicy,
		policytest.Isolate
)
