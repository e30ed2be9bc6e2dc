// Written by benchmarks/oracle/compiled_archon.py with PyTorch 2.13.0 from areal-project/AReaL at v0.5.3, v1.0.4.
#include "layers/compiled_archon.hpp"

#include <array>

namespace oomplan {
namespace {

constexpr std::array<ArchonGraph, 21> kTraining{{
    {false,
     {"qwen2", RmsNorm::by_hand, false, Recompute::none,
      "+16=T:4 +17=T.H +18=T.H +19=T.K +20=T.K +21=2.T.d +22=T.H -18 +23=T.K -19 +24=T.H +25=T.a:4 +27=T.H +28=T:4 +29=T.H "
      "+30=T.F +31=T.F +32=T.F +33=T.H",
      "x 16 17 21 21 22 23 20 24 25 27 28 29 30 31 32", 33,
      "+28=F.H -f32 +29=T.F +30=T.F -29 -f30 +31=F.H +32=T.H -30 +33=F.H -f29 +34=T.H -f31 +35=T.H +36=T.H +37=T.H +38=T.K "
      "+39=T.K ! -36 -f25 -f22 -f23 -f20 +40=T.H +41=T.K +42=T.H -38 +43=T.H -37 -f21 -f21 +44=T.H +45=P.H:4 +46=P.H:4 -32 -34 "
      "-f27 -f28 +47=H -45 +48=H.H -f24 +49=K.H +50=P.K:4 -39 +51=K -50 +52=K.H +53=P.K:4 -41 +54=K -53 +55=H.H -f17 +56=P.H:4 "
      "-43 +57=H -56 +58=H -46 -40 -42 -44 -x -f16",
      "x=35 attention_norm=58 ffn_norm=47 k=52 k_bias=54 o=48 q=55 q_bias=57 v=49 v_bias=51 w1=33 w2=28 w3=31"}},
    {true,
     {"qwen2", RmsNorm::by_hand, false, Recompute::none,
      "+16=T:4 +17=T.H +18=T.H +19=T.K +20=T.K +21=T.H -18 +22=T.K -19 +23=T.H +24=T.a:4 +26=T.H +27=T:4 +28=T.H +29=T.F "
      "+30=T.F +31=T.F +32=T.H",
      "x rope 16 17 21 22 20 23 24 26 27 28 29 30 31", 32,
      "+28=F.H -f31 +29=T.F +30=T.F -29 -f29 +31=F.H +32=T.H -30 +33=F.H -f28 +34=T.H -f30 +35=T.H +36=T.H +37=T.H +38=T.K "
      "+39=T.K ! -36 -f24 -f21 -f22 -f20 +40=T.H +41=T.K +42=T.H -38 +43=T.H -37 -rope +44=T.H +45=P.H:4 +46=P.H:4 -32 -34 -f26 "
      "-f27 +47=H -45 +48=H.H -f23 +49=K.H +50=P.K:4 -39 +51=K -50 +52=K.H +53=P.K:4 -41 +54=K -53 +55=H.H -f17 +56=P.H:4 -43 "
      "+57=H -56 +58=H -46 -40 -42 -44 -x -f16",
      "x=35 attention_norm=58 ffn_norm=47 k=52 k_bias=54 o=48 q=55 q_bias=57 v=49 v_bias=51 w1=33 w2=28 w3=31"}},
    {false,
     {"qwen2", RmsNorm::by_hand, false, Recompute::none,
      "+16=T:4 +17=T.H +18=T.H +19=T.K +20=T.K +21=2.T.d +22=T.H -18 +23=T.K -19 +24=T.H +25=T.a:4 +27=T.H +28=T:4 +29=T.H "
      "+30=T.F +31=T.F +32=T.F +33=T.H",
      "x 16 17 21 21 22 23 20 24 25 27 28 29 30 31 32", 33,
      "+28=T.F +29=T.F -28 -f30 +30=T.H +31=T.H +32=T.H +33=T.H +34=T.H +35=T.K +36=T.K ! -33 -f25 -f22 -f23 -f20 +37=P.K:4 "
      "+38=K -37 +39=T.K -35 +40=P.K:4 +41=K -40 +42=T.H +43=T.H +44=T.H -34 -f21 -f21 +45=T.H +46=P.H:4 +47=P.H:4 -30 -31 -f27 "
      "-f28 +48=H -46 +49=P.H:4 +50=H -49 +51=H -47 +52=K.H -36 +53=K.H -39 +54=H.H -f24 +55=H.H -44 -f17 -42 -43 -45 -x -f16 "
      "+56=F.H -f32 +57=F.H -29 +58=F.H -f31 -f29",
      "x=32 attention_norm=51 ffn_norm=48 k=53 k_bias=41 o=54 q=55 q_bias=50 v=52 v_bias=38 w1=58 w2=56 w3=57"}},
    {false,
     {"qwen2", RmsNorm::by_hand, false, Recompute::none,
      "+16=T:4 +17=T.H +18=T.H +19=T.K +20=T.K +21=2.T.d +22=T.H -18 +23=T.K -19 +24=T.H +25=T.a:4 +27=T.H +28=T:4 +29=T.H "
      "+30=T.F +31=T.F +32=T.F +33=T.H",
      "x 16 17 21 21 22 23 20 24 25 27 28 29 30 31 32", 33,
      "+28=F.H -f32 +29=T.F +30=T.F -29 -f30 +31=T.H +32=T.H +33=T.H +34=T.H +35=T.H +36=T.K +37=T.K ! -34 -f25 -f22 -f23 -f20 "
      "+38=T.K -36 +39=T.H -35 -f21 -f21 +40=P.K:4 +41=K -40 +42=P.K:4 +43=K -42 +44=P.H:4 +45=H -44 +46=K.H +47=K.H +48=T.H "
      "-37 +49=T.H -38 +50=H.H -f24 +51=H.H -f17 +52=T.H -39 +53=P.H:4 +54=P.H:4 -31 -32 -f27 -f28 -48 -49 -52 -x -f16 +55=H "
      "-53 +56=H -54 +57=F.H -30 +58=F.H -f31 -f29",
      "x=33 attention_norm=56 ffn_norm=55 k=47 k_bias=43 o=50 q=51 q_bias=45 v=46 v_bias=41 w1=58 w2=28 w3=57"}},
    {false,
     {"qwen2", RmsNorm::by_hand, false, Recompute::none,
      "+16=T:4 +17=T.H +18=T.H +19=T.K +20=T.K +21=2.T.d +22=T.H -18 +23=T.K -19 +24=T.H +25=T.a:4 +27=T.H +28=T:4 +29=T.H "
      "+30=T.F +31=T.F +32=T.F +33=T.H",
      "x 16 17 21 21 22 23 20 24 25 27 28 29 30 31 32", 33,
      "+28=F.H -f32 +29=T.F +30=T.F -29 -f30 +31=F.H +32=T.H -30 +33=F.H -f29 +34=T.H -f31 +35=T.H +36=T.H +37=H.H +38=T.H "
      "+39=T.K +40=T.K ! -36 -f24 -f25 -f22 -f23 -f20 +41=T.H +42=K.H +43=P.K:4 -40 +44=T.K -39 +45=T.H -38 -f21 -f21 +46=K -43 "
      "+47=T.H +48=K.H +49=P.K:4 -44 +50=T.H +51=P.H:4 +52=P.H:4 -32 -34 -f27 -f28 -41 -47 -50 -x -f16 +53=H.H -f17 +54=P.H:4 "
      "-45 +55=K -49 +56=H -51 +57=H -52 +58=H -54",
      "x=35 attention_norm=57 ffn_norm=56 k=48 k_bias=55 o=37 q=53 q_bias=58 v=42 v_bias=46 w1=33 w2=28 w3=31"}},
    {false,
     {"qwen2", RmsNorm::by_hand, false, Recompute::full,
      "+16=T.H +17=T.H +18=T.K +19=T.K -16 +20=T.H -17 +21=T.K -18 +22=T.H +23=T.a:4 -19 -20 -21 -23 +25=T.H -22 +26=T.H "
      "+27=T.F +28=T.F -26 -28 +29=T.H -27 -29",
      "x rope", 25,
      "+17=T:4 +18=T.H +19=T.H +20=T.K +21=T.K +22=T.H -19 +23=T.K -20 +24=T.H +25=T.a:4 +27=T.H +28=T:4 +29=T.H +30=T.F "
      "+31=T.F +32=T.F +33=T.F +34=T.F +35=T.F -30 -31 -32 +36=F.H -33 +37=F.H +38=T.H -34 +39=F.H -29 +40=T.H -35 +41=T.H "
      "+42=T.H +43=T.H +44=T.K +45=T.K ! -42 -21 -22 -23 -25 +46=T.H +47=T.K +48=T.H -44 +49=T.H -43 -rope +50=T.H +51=P.H:4 "
      "+52=P.H:4 -27 -28 -38 -40 +53=H -51 +54=H.H -24 +55=K.H +56=P.K:4 -45 +57=K -56 +58=K.H +59=P.K:4 -47 +60=K -59 +61=H.H "
      "-18 +62=P.H:4 -49 +63=H -62 +64=H -52 -17 -46 -48 -50 -x",
      "x=41 attention_norm=64 ffn_norm=53 k=58 k_bias=60 o=54 q=61 q_bias=63 v=55 v_bias=57 w1=39 w2=36 w3=37"}},
    {false,
     {"qwen2", RmsNorm::by_hand, false, Recompute::full,
      "+16=T.H +17=T.H +18=T.K +19=T.K -16 +20=T.H -17 +21=T.K -18 +22=T.H +23=T.a:4 -19 -20 -21 -23 +25=T.H -22 +26=T.H "
      "+27=T.F +28=T.F -26 -28 +29=T.H -27 -29",
      "x rope", 25,
      "+17=T:4 +18=T.H +19=T.K +20=T.K -19 +21=T.K +22=T.H +23=T.H -22 +24=T.H +25=T.a:4 +27=T.H +28=T:4 +29=T.H +30=T.F "
      "+31=T.F +32=T.F +33=T.F +34=T.F +35=T.F -30 -31 -32 +36=T.H +37=T.H +38=T.H +39=T.H +40=T.H +41=T.K +42=T.K ! -39 -21 "
      "-23 -20 -25 +43=T.K -41 +44=T.H -40 -rope +45=P.K:4 +46=K -45 +47=P.K:4 +48=K -47 +49=P.H:4 +50=H -49 +51=K.H +52=K.H "
      "+53=T.H -42 +54=T.H -43 +55=H.H -24 +56=H.H -18 +57=T.H -44 +58=P.H:4 +59=P.H:4 -27 -28 -36 -37 -17 -53 -54 -57 -x +60=H "
      "-58 +61=H -59 +62=F.H -33 +63=F.H -34 +64=F.H -29 -35",
      "x=38 attention_norm=61 ffn_norm=60 k=52 k_bias=48 o=55 q=56 q_bias=50 v=51 v_bias=46 w1=64 w2=62 w3=63"}},
    {false,
     {"qwen2", RmsNorm::by_hand, false, Recompute::full,
      "+16=T.H +17=T.H +18=T.K +19=T.K -16 +20=T.H -17 +21=T.K -18 +22=T.H +23=T.a:4 -19 -20 -21 -23 +25=T.H -22 +26=T.H "
      "+27=T.F +28=T.F -26 -28 +29=T.H -27 -29",
      "x rope", 25,
      "+17=T:4 +18=T.H +19=T.K +20=T.K -19 +21=T.K +22=T.H +23=T.H -22 +24=T.H +25=T.a:4 +27=T.H +28=T:4 +29=T.H +30=T.F "
      "+31=T.F +32=T.F +33=T.F +34=T.F +35=T.F -30 -31 -32 +36=T.H +37=T.H +38=T.H +39=T.H +40=T.H +41=T.K +42=T.K ! -39 -21 "
      "-23 -20 -25 +43=T.K -41 +44=T.H -40 -rope +45=P.K:4 +46=K -45 +47=P.K:4 +48=K -47 +49=P.H:4 +50=H -49 +51=K.H +52=K.H "
      "+53=H.H -24 +54=H.H -18 +55=T.H -44 +56=T.H -42 +57=T.H -43 +58=P.H:4 +59=P.H:4 -27 -28 -36 -37 -17 -56 -57 -55 -x +60=H "
      "-58 +61=H -59 +62=F.H -33 +63=F.H -34 +64=F.H -29 -35",
      "x=38 attention_norm=61 ffn_norm=60 k=52 k_bias=48 o=53 q=54 q_bias=50 v=51 v_bias=46 w1=64 w2=62 w3=63"}},
    {false,
     {"qwen2", RmsNorm::by_hand, false, Recompute::selective,
      "+16=T.H +17=T.H +18=T.K +19=T.K -16 +20=T.H -17 +21=T.K -18 +22=T.H +23=T.a:4 -19 -20 -21 +25=T.H +26=T.H +27=T.F "
      "+28=T.F -26 +29=T.H -27",
      "x rope 22 23 25 28", 29,
      "+22=T:4 +23=T.H +24=T.F +25=T.F +26=T.F +27=T.F +28=T.F -24 -25 -f28 +29=F.H -26 +30=F.H +31=T.H -27 +32=F.H -23 +33=T.H "
      "-28 +34=T:4 +35=T.H +36=T.H +37=T.H +38=T.K +39=T.H +40=T.H -39 +41=T.K +42=T.K -41 +43=T.H +44=T.K +45=T.K ! -37 -38 "
      "-40 -42 -f23 +46=T.H +47=T.K +48=T.H -44 +49=T.H -43 -rope +50=T.H +51=P.H:4 +52=P.H:4 -22 -33 -31 -f25 +53=H -51 "
      "+54=H.H -f22 +55=K.H +56=P.K:4 -45 +57=K -56 +58=K.H +59=P.K:4 -47 +60=K -59 +61=H.H -36 +62=P.H:4 -49 +63=H -62 +64=H "
      "-52 -34 -46 -48 -50 -x",
      "x=35 attention_norm=64 ffn_norm=53 k=58 k_bias=60 o=54 q=61 q_bias=63 v=55 v_bias=57 w1=32 w2=29 w3=30"}},
    {false,
     {"qwen2", RmsNorm::by_hand, false, Recompute::selective,
      "+16=T.H +17=T.H +18=T.K +19=T.K -16 +20=T.H -17 +21=T.K -18 +22=T.H +23=T.a:4 -19 -20 -21 +25=T.H +26=T.H +27=T.F "
      "+28=T.F -26 +29=T.H -27",
      "x rope 22 23 25 28", 29,
      "+22=T:4 +23=T.H +24=T.F +25=T.F +26=T.F +27=T.F +28=T.F -24 -25 -f28 +29=T.H +30=T.H +31=T:4 +32=T.H +33=T.H +34=T.K "
      "+35=T.K +36=T.K -35 +37=T.H +38=T.H +39=T.H -38 +40=T.H +41=T.K +42=T.K ! -37 -34 -39 -36 -f23 +43=T.K -41 +44=T.H -40 "
      "-rope +45=P.K:4 +46=K -45 +47=P.K:4 +48=K -47 +49=P.H:4 +50=H -49 +51=K.H +52=K.H +53=T.H -42 +54=T.H -43 +55=H.H -f22 "
      "+56=T.H +57=P.H:4 +58=P.H:4 -22 -30 -29 -f25 -31 -53 -54 -56 -x +59=H.H -33 -44 +60=H -57 +61=H -58 +62=F.H -26 +63=F.H "
      "-27 +64=F.H -23 -28",
      "x=32 attention_norm=61 ffn_norm=60 k=52 k_bias=48 o=55 q=59 q_bias=50 v=51 v_bias=46 w1=64 w2=62 w3=63"}},
    {false,
     {"qwen3", RmsNorm::by_hand, false, Recompute::none,
      "+15=T:4 +16=T.H +17=T.A +18=T.K +19=T.K +20=2.T.d +21=T.a:4 +22=T.A +23=T.g:4 +24=T.K +25=T.A +26=T.a:4 +28=T.H +29=T:4 "
      "+30=T.H +31=T.F +32=T.F +33=T.F +34=T.H",
      "x 15 16 17 18 21 23 20 20 22 24 19 25 26 28 29 30 31 32 33", 34,
      "+34=F.H -f33 +35=T.F +36=T.F -35 -f31 +37=F.H +38=T.H -36 +39=F.H -f30 +40=T.H -f32 +41=T.H +42=T.A +43=T.A +44=T.K "
      "+45=T.K ! -42 -f26 -f22 -f24 -f19 +46=T.H +47=T.K +48=T.K +49=T.H -44 +50=T.A +51=T.A -43 -f20 -f20 +52=T.H +53=P.H:4 "
      "+54=P.H:4 -38 -40 -f28 -f29 +55=H -53 +56=A.H -f25 +57=P.K:4 -47 -f18 -f23 +58=d -57 +59=P.A:4 -50 -f17 -f21 +60=d -59 "
      "+61=K.H -45 +62=K.H -48 +63=A.H -51 -f16 +64=H -54 -46 -49 -52 -x -f15",
      "x=41 attention_norm=64 ffn_norm=55 k=62 k_norm=58 o=56 q=63 q_norm=60 v=61 w1=39 w2=34 w3=37"}},
    {true,
     {"qwen3", RmsNorm::by_hand, false, Recompute::none,
      "+15=T:4 +16=T.H +17=T.A +18=T.K +19=T.K +20=T.a:4 +21=T.A +22=T.g:4 +23=T.K +24=T.A +25=T.a:4 +27=T.H +28=T:4 +29=T.H "
      "+30=T.F +31=T.F +32=T.F +33=T.H",
      "x rope 15 16 17 18 20 22 21 23 19 24 25 27 28 29 30 31 32", 33,
      "+34=F.H -f32 +35=T.F +36=T.F -35 -f30 +37=F.H +38=T.H -36 +39=F.H -f29 +40=T.H -f31 +41=T.H +42=T.A +43=T.A +44=T.K "
      "+45=T.K ! -42 -f25 -f21 -f23 -f19 +46=T.H +47=T.K +48=T.K +49=T.H -44 +50=T.A +51=T.A -43 -rope +52=T.H +53=P.H:4 "
      "+54=P.H:4 -38 -40 -f27 -f28 +55=H -53 +56=A.H -f24 +57=P.K:4 -47 -f18 -f22 +58=d -57 +59=P.A:4 -50 -f17 -f20 +60=d -59 "
      "+61=K.H -45 +62=K.H -48 +63=A.H -51 -f16 +64=H -54 -46 -49 -52 -x -f15",
      "x=41 attention_norm=64 ffn_norm=55 k=62 k_norm=58 o=56 q=63 q_norm=60 v=61 w1=39 w2=34 w3=37"}},
    {false,
     {"qwen3", RmsNorm::by_hand, false, Recompute::none,
      "+15=T:4 +16=T.H +17=T.A +18=T.K +19=T.K +20=2.T.d +21=T.a:4 +22=T.A +23=T.g:4 +24=T.K +25=T.A +26=T.a:4 +28=T.H +29=T:4 "
      "+30=T.H +31=T.F +32=T.F +33=T.F +34=T.H",
      "x 15 16 17 18 21 23 20 20 22 24 19 25 26 28 29 30 31 32 33", 34,
      "+34=T.F +35=T.F -34 -f31 +36=T.H +37=T.H +38=T.H +39=T.A +40=T.A +41=T.K +42=T.K ! -39 -f26 -f22 -f24 -f19 +43=T.K "
      "+44=T.K -41 +45=P.K:4 -43 -f18 -f23 +46=d -45 +47=T.H +48=T.H +49=T.A +50=T.A -40 -f20 -f20 +51=T.H +52=P.H:4 +53=P.H:4 "
      "-36 -37 -f28 -f29 +54=H -52 +55=H -53 +56=P.A:4 -49 -f17 -f21 +57=d -56 +58=K.H -42 +59=K.H -44 +60=A.H -f25 +61=A.H -50 "
      "-f16 -47 -48 -51 -x -f15 +62=F.H -f33 +63=F.H -35 +64=F.H -f32 -f30",
      "x=38 attention_norm=55 ffn_norm=54 k=59 k_norm=46 o=60 q=61 q_norm=57 v=58 w1=64 w2=62 w3=63"}},
    {false,
     {"qwen3", RmsNorm::by_hand, false, Recompute::full,
      "+15=T.H +16=T.A +17=T.K +18=T.K -15 +19=T.A -16 +20=T.K -17 +21=T.A +22=T.a:4 -20 -18 -19 -22 +24=T.H -21 +25=T.H "
      "+26=T.F +27=T.F -25 -27 +28=T.H -26 -28",
      "x rope", 24,
      "+16=T:4 +17=T.H +18=T.A +19=T.K +20=T.K +21=T.a:4 +22=T.A +23=T.g:4 +24=T.K +25=T.A +26=T.a:4 +28=T.H +29=T:4 +30=T.H "
      "+31=T.F +32=T.F +33=T.F +34=T.F +35=T.F +36=T.F -31 -32 -33 +37=F.H -34 +38=F.H +39=T.H -35 +40=F.H -30 +41=T.H -36 "
      "+42=T.H +43=T.A +44=T.A +45=T.K +46=T.K ! -24 -26 -43 -20 -22 +47=T.H +48=T.K +49=T.K +50=T.H -45 +51=T.A +52=T.A -44 "
      "-rope +53=T.H +54=P.H:4 +55=P.H:4 -28 -29 -39 -41 +56=H -54 +57=A.H -25 +58=P.K:4 -19 -48 -23 +59=d -58 +60=P.A:4 -18 "
      "-51 -21 +61=d -60 +62=K.H -46 +63=K.H -49 +64=A.H -17 -52 +65=H -55 -16 -47 -50 -53 -x",
      "x=42 attention_norm=65 ffn_norm=56 k=63 k_norm=59 o=57 q=64 q_norm=61 v=62 w1=40 w2=37 w3=38"}},
    {false,
     {"qwen3", RmsNorm::by_hand, false, Recompute::full,
      "+15=T.H +16=T.A +17=T.K +18=T.K -15 +19=T.A -16 +20=T.K -17 +21=T.A +22=T.a:4 -20 -18 -19 -22 +24=T.H -21 +25=T.H "
      "+26=T.F +27=T.F -25 -27 +28=T.H -26 -28",
      "x rope", 24,
      "+16=T:4 +17=T.H +18=T.K +19=T.K +20=T.g:4 +21=T.K +22=T.A +23=T.a:4 +24=T.A +25=T.A +26=T.a:4 +28=T.H +29=T:4 +30=T.H "
      "+31=T.F +32=T.F +33=T.F +34=T.F +35=T.F +36=T.F -31 -32 -33 +37=T.H +38=T.H +39=T.H +40=T.A +41=T.A +42=T.K +43=T.K ! "
      "-21 -26 -40 -19 -24 +44=T.K +45=T.K -42 +46=P.K:4 -18 -44 -20 +47=d -46 +48=K.H +49=T.H -43 +50=K.H +51=T.H -45 +52=A.H "
      "-25 +53=T.A +54=T.A -41 -rope +55=P.A:4 -22 -53 -23 +56=d -55 +57=T.H +58=P.H:4 +59=P.H:4 -28 -29 -37 -38 -16 -49 -51 "
      "-57 -x +60=A.H -17 -54 +61=H -58 +62=H -59 +63=F.H -34 +64=F.H -35 +65=F.H -30 -36",
      "x=39 attention_norm=62 ffn_norm=61 k=50 k_norm=47 o=52 q=60 q_norm=56 v=48 w1=65 w2=63 w3=64"}},
    {false,
     {"qwen3", RmsNorm::by_hand, false, Recompute::full,
      "+15=T.H +16=T.A +17=T.K +18=T.K -15 +19=T.A -16 +20=T.K -17 +21=T.A +22=T.a:4 -20 -18 -19 -22 +24=T.H -21 +25=T.H "
      "+26=T.F +27=T.F -25 -27 +28=T.H -26 -28",
      "x rope", 24,
      "+16=T:4 +17=T.H +18=T.K +19=T.K +20=T.g:4 +21=T.K +22=T.A +23=T.a:4 +24=T.A +25=T.A +26=T.a:4 +28=T.H +29=T:4 +30=T.H "
      "+31=T.F +32=T.F +33=T.F +34=T.F +35=T.F +36=T.F -31 -32 -33 +37=T.H +38=T.H +39=T.H +40=T.A +41=T.A +42=T.K +43=T.K ! "
      "-21 -26 -40 -19 -24 +44=T.K +45=T.K -42 +46=P.K:4 -18 -44 -20 +47=d -46 +48=A.H -25 +49=K.H +50=T.H -43 +51=K.H +52=T.H "
      "-45 +53=T.A +54=T.A -41 -rope +55=P.A:4 -22 -53 -23 +56=d -55 +57=A.H -17 +58=T.H -54 +59=P.H:4 +60=P.H:4 -28 -29 -37 "
      "-38 -16 -50 -52 -58 -x +61=H -59 +62=H -60 +63=F.H -34 +64=F.H -35 +65=F.H -30 -36",
      "x=39 attention_norm=62 ffn_norm=61 k=51 k_norm=47 o=48 q=57 q_norm=56 v=49 w1=65 w2=63 w3=64"}},
    {false,
     {"qwen3", RmsNorm::by_hand, false, Recompute::full,
      "+15=T.H +16=T.A +17=T.K +18=T.K -15 +19=T.A -16 +20=T.K -17 +21=T.A +22=T.a:4 -20 -18 -19 -22 +24=T.H -21 +25=T.H "
      "+26=T.F +27=T.F -25 -27 +28=T.H -26 -28",
      "x rope", 24,
      "+16=T:4 +17=T.H +18=T.K +19=T.K +20=T.g:4 +21=T.K +22=T.A +23=T.a:4 +24=T.A +25=T.A +26=T.a:4 +28=T.H +29=T:4 +30=T.H "
      "+31=T.F +32=T.F +33=T.F +34=T.F +35=T.F +36=T.F -31 -32 -33 +37=T.H +38=T.H +39=T.H +40=T.A +41=T.A +42=T.K +43=T.K ! "
      "-21 -26 -40 -19 -24 +44=T.K +45=T.K -42 +46=P.K:4 -18 -44 -20 +47=d -46 +48=K.H +49=K.H +50=T.H -43 +51=T.H -45 +52=A.H "
      "-25 +53=T.A +54=T.A -41 -rope +55=P.A:4 -22 -53 -23 +56=d -55 +57=T.H +58=P.H:4 +59=P.H:4 -28 -29 -37 -38 -16 -50 -51 "
      "-57 -x +60=A.H -17 -54 +61=H -58 +62=H -59 +63=F.H -34 +64=F.H -35 +65=F.H -30 -36",
      "x=39 attention_norm=62 ffn_norm=61 k=49 k_norm=47 o=52 q=60 q_norm=56 v=48 w1=65 w2=63 w3=64"}},
    {false,
     {"qwen3", RmsNorm::by_hand, false, Recompute::selective,
      "+15=T.H +16=T.A +17=T.K +18=T.K -15 +19=T.A +20=T.K -17 +21=T.A +22=T.a:4 -20 -19 +24=T.H +25=T.H +26=T.F +27=T.F -25 "
      "+28=T.H -27 -28",
      "x rope 16 18 21 22 26", 24,
      "+22=T.H +23=T:4 +24=T.H +25=T.F +26=T.F +27=T.F +28=T.F +29=T.F -25 -26 -f26 +30=F.H -27 +31=F.H +32=T.H -28 +33=F.H -24 "
      "+34=T.H -29 +35=T:4 +36=T.H +37=T.H +38=T.A +39=T.a:4 +40=T.A +41=T.K +42=T.g:4 +43=T.K +44=T.A +45=T.K +46=T.K ! -38 "
      "-40 -43 -f22 -f18 +47=T.H +48=T.K +49=T.K +50=T.H -45 +51=T.A +52=T.A -44 -rope +53=T.H +54=P.H:4 +55=P.H:4 -22 -23 -34 "
      "-32 +56=H -54 +57=A.H -f21 +58=P.K:4 -41 -42 -48 +59=d -58 +60=P.A:4 -39 -51 -f16 +61=d -60 +62=K.H -46 +63=K.H -49 "
      "+64=A.H -37 -52 +65=H -55 -35 -47 -50 -53 -x",
      "x=36 attention_norm=65 ffn_norm=56 k=63 k_norm=59 o=57 q=64 q_norm=61 v=62 w1=33 w2=30 w3=31"}},
    {false,
     {"qwen3", RmsNorm::by_hand, false, Recompute::selective,
      "+15=T.H +16=T.A +17=T.K +18=T.K -15 +19=T.A +20=T.K -17 +21=T.A +22=T.a:4 -20 -19 +24=T.H +25=T.H +26=T.F +27=T.F -25 "
      "+28=T.H -27 -28",
      "x rope 16 18 21 22 26", 24,
      "+22=T.H +23=T:4 +24=T.H +25=T.a:4 +26=T.A +27=T.F +28=T.F +29=T.F +30=T.F +31=T.F -27 -28 -f26 +32=T.H +33=T.H +34=T:4 "
      "+35=T.H +36=T.H +37=T.K +38=T.g:4 +39=T.K +40=T.A +41=T.A +42=T.K +43=T.K ! -40 -26 -39 -f22 -f18 +44=T.K +45=T.K -42 "
      "+46=P.K:4 -37 -38 -44 +47=d -46 +48=K.H +49=T.H -43 +50=K.H +51=T.H -45 +52=A.H -f21 +53=T.A +54=T.A -41 -rope +55=P.A:4 "
      "-25 -53 -f16 +56=d -55 +57=T.H +58=P.H:4 +59=P.H:4 -22 -23 -33 -32 -34 -49 -51 -57 -x +60=A.H -36 -54 +61=H -58 +62=H "
      "-59 +63=F.H -29 +64=F.H -30 +65=F.H -31 -24",
      "x=35 attention_norm=62 ffn_norm=61 k=50 k_norm=47 o=52 q=60 q_norm=56 v=48 w1=65 w2=63 w3=64"}},
    {false,
     {"qwen3", RmsNorm::by_hand, false, Recompute::selective,
      "+15=T.H +16=T.A +17=T.K +18=T.K -15 +19=T.A +20=T.K -17 +21=T.A +22=T.a:4 -20 -19 +24=T.H +25=T.H +26=T.F +27=T.F -25 "
      "+28=T.H -27 -28",
      "x rope 16 18 21 22 26", 24,
      "+22=T.H +23=T:4 +24=T.H +25=T.F +26=T.F +27=T.F +28=T.F +29=T.F -26 -25 -f26 +30=T.H +31=T.H +32=T:4 +33=T.H +34=T.H "
      "+35=T.K +36=T.g:4 +37=T.K +38=T.A +39=T.a:4 +40=T.A +41=T.A +42=T.K +43=T.K ! -38 -40 -37 -f22 -f18 +44=T.K +45=T.K -42 "
      "+46=P.K:4 -35 -36 -44 +47=d -46 +48=T.H +49=T.H +50=T.A +51=T.A -41 -rope +52=T.H +53=P.H:4 +54=P.H:4 -22 -23 -31 -30 "
      "+55=H -53 +56=H -54 +57=P.A:4 -39 -50 -f16 +58=d -57 +59=K.H -43 +60=K.H -45 +61=A.H -f21 +62=A.H -34 -51 -32 -48 -49 "
      "-52 -x +63=F.H -27 +64=F.H -28 +65=F.H -29 -24",
      "x=33 attention_norm=56 ffn_norm=55 k=60 k_norm=47 o=61 q=62 q_norm=58 v=59 w1=65 w2=63 w3=64"}},
    {false,
     {"qwen3", RmsNorm::by_hand, false, Recompute::selective,
      "+15=T.H +16=T.A +17=T.K +18=T.K -15 +19=T.A +20=T.K -17 +21=T.A +22=T.a:4 -20 -19 +24=T.H +25=T.H +26=T.F +27=T.F -25 "
      "+28=T.H -27 -28",
      "x rope 16 18 21 22 26", 24,
      "+22=T.H +23=T:4 +24=T.H +25=T.a:4 +26=T.A +27=T.F +28=T.F +29=T.F +30=T.F +31=T.F -27 -28 -f26 +32=T.H +33=T.H +34=T:4 "
      "+35=T.H +36=T.H +37=T.K +38=T.g:4 +39=T.K +40=T.A +41=T.A +42=T.K +43=T.K ! -40 -26 -39 -f22 -f18 +44=T.K +45=T.K -42 "
      "+46=P.K:4 -37 -38 -44 +47=d -46 +48=K.H +49=K.H +50=T.H -43 +51=T.H -45 +52=A.H -f21 +53=T.A +54=T.A -41 -rope +55=P.A:4 "
      "-25 -53 -f16 +56=d -55 +57=T.H +58=P.H:4 +59=P.H:4 -22 -23 -33 -32 -34 -50 -51 -57 -x +60=A.H -36 -54 +61=H -58 +62=H "
      "-59 +63=F.H -29 +64=F.H -30 +65=F.H -31 -24",
      "x=35 attention_norm=62 ffn_norm=61 k=49 k_norm=47 o=52 q=60 q_norm=56 v=48 w1=65 w2=63 w3=64"}},
}};

constexpr std::array<CompiledGraph, 2> kInference{{
    {"qwen2", RmsNorm::by_hand, false, Recompute::none,
     "+16=T.H +17=T.H +18=T.K +19=T.K -16 +20=T.H -17 +21=T.K -18 +22=T.H +23=T.a:4 -19 -20 -21 -23 +25=T.H -22 +26=T.H "
     "+27=T.F +28=T.F -26 -28 +29=T.H -27 -29",
     "", 25, "", "x attention_norm ffn_norm k k_bias o q q_bias v v_bias w1 w2 w3"},
    {"qwen3", RmsNorm::by_hand, false, Recompute::none,
     "+15=T.H +16=T.A +17=T.A -16 +18=T.K +19=T.K -18 +20=T.K -15 +21=T.A +22=T.a:4 -19 -20 -17 -22 +24=T.H -21 +25=T.H "
     "+26=T.F +27=T.F -25 -27 +28=T.H -26 -28",
     "", 24, "", "x attention_norm ffn_norm k k_norm o q q_norm v w1 w2 w3"},
}};

}  // namespace

std::span<const ArchonGraph> archon_graphs() { return kTraining; }

const CompiledGraph* find_archon_inference(std::string_view family) {
  for (const CompiledGraph& one : kInference)
    if (one.family == family) return &one;
  return nullptr;
}

}  // namespace oomplan
