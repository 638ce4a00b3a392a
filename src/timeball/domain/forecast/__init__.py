"""timeball.domain.forecast"""
